"""A training script for the tests: a float64 model on a fixed data set, slow until the test lets it run free."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, dtype=torch.float64, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)

with elastrain.join() as job:
    model = job.wrap(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    job.track(optimizer=optimizer, scheduler=scheduler)
    commits = []
    job.on_commit(lambda: commits.append(job.step))
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=10, seed=3)
    for x, y in job.steps(loader, epochs=epochs):
        if not (out / "run-free").exists():
            time.sleep(delay)
        if (out / f"stop-{job.rank}").exists():
            job.stop()
        if (out / f"break-{job.rank}").exists():
            break
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        scheduler.step()

state = {"model": model.module.state_dict(), "step": job.step, "commits": commits, "lr": scheduler.get_last_lr()}
state["beside"] = [name for name in sys.modules if name.startswith("elastrain_")]
torch.save(state, out / f"final-{os.getpid()}.pt")
