"""A training script for the tests of step boundaries: float64, and slow until the test lets it run free.

Each process computes at its end what a run without events and without elastrain gives. ``EVERY=1,3``: functions of
``job.every`` with these intervals. ``CALLS``: they exchange values of all ranks.
"""

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


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    return net, torch.optim.Adam(net.parameters(), lr=0.01)


with elastrain.join() as job:
    net, optimizer = made()
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=10, seed=3)
    pauses: list[int] = []

    def pause() -> None:
        pauses.append(job.step)
        if "CALLS" in os.environ:
            assert job.all_gather_object(job.step) == [job.step] * job.world_size

    for interval in os.environ.get("EVERY", "").split(","):
        if interval:
            job.every(int(interval), pause)
    for x, y in job.steps(loader, epochs=epochs):
        if not (out / "run-free").exists():
            time.sleep(delay)
        job.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()

expected, optimizer = made()
for step in range(job.step):
    batch = loader.order.batch(step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(expected(inputs[batch]), labels[batch]).backward()
    optimizer.step()
state = {"model": net.state_dict(), "expected": expected.state_dict(), "step": job.step, "pauses": pauses}
torch.save(state, out / f"final-{os.getpid()}.pt")
