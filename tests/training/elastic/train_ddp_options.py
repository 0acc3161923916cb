"""A training script for the tests: DDP's options by which DDP communicates itself (``DDP_OPTIONS``, as JSON).

A rank kills itself within its backward as soon as there is a file ``die-RANK``.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
options = json.loads(os.environ["DDP_OPTIONS"])
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, dtype=torch.float64, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)


class Branches(nn.Module):
    """With ``find_unused_parameters`` each step uses one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 16)
        self.branches = nn.ModuleList(nn.Linear(16, 3) for _ in range(2))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        hidden = torch.tanh(self.trunk(x))
        if "find_unused_parameters" in options:
            return self.branches[step % 2](hidden)
        return self.branches[0](hidden) + self.branches[1](hidden)


with elastrain.join() as job:
    model = job.wrap(Branches().double(), **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.track(optimizer=optimizer)
    commits = []
    job.on_commit(lambda: commits.append(job.step))
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=10, seed=3)
    for x, y in job.steps(loader, epochs=epochs):
        if not (out / "run-free").exists():
            time.sleep(delay)
        loss = nn.functional.cross_entropy(model(x, job.step), y)
        if job.world_size > 1 and (out / f"die-{job.rank}").exists():
            # The first gradient of the backward: sums of this step have begun on other ranks, and end on none.
            loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        optimizer.zero_grad()
        job.backward(loss)
        optimizer.step()

torch.save({"model": model.module.state_dict(), "step": job.step, "commits": commits}, out / f"final-{os.getpid()}.pt")
