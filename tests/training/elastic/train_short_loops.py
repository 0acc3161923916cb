"""A training script for the tests with short loops: epochs of three steps, and code between them.

``CATCH_UP``: seconds for which others wait for the code between loops of a process that has not joined. ``EPOCHS``:
this rank's script has fewer loops. ``LONG``: epochs of 24 steps, a loop over ``job.epochs``, and no step beyond that in
the file ``allowed`` in the folder. The file ``hold`` there keeps a script that catches up between its loops.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.elastic.group.machine import core

core.CATCH_UP_SECONDS = float(os.environ.get("CATCH_UP", "30"))

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
long = "LONG" in os.environ
samples = 12 * (24 if long else 3)
inputs = torch.randn(samples, 4, dtype=torch.float64, generator=generator)
labels = torch.randint(0, 3, (samples,), generator=generator)

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    model = job.wrap(net, optimizer=optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.99)
    job.track(schedule=schedule)
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=12, seed=3)
    between = []
    for epoch in job.epochs(loader, epochs) if long else range(int(os.environ.get("EPOCHS", epochs))):
        for x, y in job.steps(loader, epochs=epoch + 1):
            if not (out / "run-free").exists():
                time.sleep(delay)
            while long and job.step and job.step >= int((out / "allowed").read_text()):
                time.sleep(0.005)
            job.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
        between.append((epoch, job.rank))
        if job.rank == -1:
            while (out / "hold").exists():
                (out / "held").touch()
                time.sleep(0.005)

state = {"model": net.state_dict(), "lr": optimizer.param_groups[0]["lr"], "step": job.step, "between": between}
torch.save(state, out / f"final-{os.getpid()}.pt")
