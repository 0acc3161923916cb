"""One of the ranks that share a card: a float64 model, slow until the file ``run-free`` is there; saves its end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a program of its own, started by path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from bench_gpu.report import ENV_DRY

folder, steps, dry = Path(sys.argv[1]), int(sys.argv[2]), ENV_DRY in os.environ
if dry:
    from bench_gpu import stand_in

    stand_in.install()
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
width = 16 if dry else 512
inputs = torch.randn(203, width, dtype=torch.float64, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh(), nn.Linear(4 * width, 3)).double().to(job.device)
    model = job.wrap(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    job.track(optimizer=optimizer)
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=12, seed=3)
    for x, y in job.steps(loader, steps=steps):
        if not (folder / "run-free").exists():
            time.sleep(0.05)
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x.to(job.device)), y.to(job.device)))
        optimizer.step()

state = {name: value.cpu() for name, value in net.state_dict().items()}
torch.save(state, folder / f"final-{os.getpid()}.pt")
(folder / f"final-{os.getpid()}.json").write_text(json.dumps({"step": job.step}))
