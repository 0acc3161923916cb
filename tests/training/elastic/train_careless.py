"""A training script for the tests that catches everything around its loop. A callback changes the average of the
weights."""

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
inputs = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Average:
    """An average of the weights."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.values, self.step = net, [p.detach().clone() for p in net.parameters()], 0

    def update(self) -> None:
        for value, parameter in zip(self.values, self.net.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.5)
        self.step = job.step

    def state_dict(self) -> dict:
        return {"values": self.values, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        self.values, self.step = state["values"], state["step"]


with elastrain.join() as job:
    net = nn.Linear(2, 1).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    model = job.wrap(net, optimizer=optimizer)
    average = Average(net)
    job.track(average=average)
    job.on_commit(average.update)
    loader = job.dataloader(TensorDataset(inputs), global_batch_size=8)
    try:
        for (x,) in job.steps(loader, epochs=epochs):
            if not (out / "run-free").exists():
                time.sleep(delay)
            job.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    except:  # noqa: E722 - as careless scripts do
        (out / f"caught-{os.getpid()}").touch()

(out / f"final-{os.getpid()}.pt").touch()
