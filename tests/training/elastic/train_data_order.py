"""A training script for the tests with two loops over data of its own: ``FIRST`` and ``SECOND`` are their lengths."""

import json
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
options = json.loads(os.environ.get("LOADER", "{}"))


def data(name: str) -> TensorDataset:
    samples = int(os.environ.get(name, "96"))
    return TensorDataset(torch.randn(samples, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))


with elastrain.join() as job:
    model = job.wrap(nn.Linear(6, 3).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job.track(optimizer=optimizer)
    for number, name in enumerate(("FIRST", "SECOND"), 1):
        loader = job.dataloader(data(name), **{"global_batch_size": 12, "seed": 3, **options})
        for (x,) in job.steps(loader, steps=number * epochs * 8):
            if not (out / "run-free").exists():
                time.sleep(delay)
            optimizer.zero_grad()
            job.backward(model(x).pow(2).mean())
            optimizer.step()

torch.save({"model": model.module.state_dict(), "step": job.step}, out / f"final-{os.getpid()}.pt")
