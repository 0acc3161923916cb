"""A training script that tests control by files: ``<worker>.hang``, ``<worker>.slow``, ``<worker>.raise``.

``argv``: a folder, and the seconds of a loop body. ``BALLAST_MB``: additional state for joiners.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

folder, delay = Path(sys.argv[1]), float(sys.argv[2])
worker = os.environ["ELASTRAIN_WORKER"]
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(203, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
labels = torch.randint(0, 3, (203,), generator=torch.Generator().manual_seed(2))


class Ballast:
    """Unused state. Its memory is untouched before a peer's state arrives, which the test observes."""

    def __init__(self, megabytes: int) -> None:
        self.tensor = torch.empty(megabytes << 20, dtype=torch.uint8)

    def state_dict(self) -> dict:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict) -> None:
        self.tensor.copy_(state["tensor"])


def asked_for(what: str) -> bool:
    return job.step > 0 and (folder / f"{worker}.{what}").exists()


with elastrain.join() as job:
    model = job.wrap(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    job.track(optimizer=optimizer)
    if os.environ.get("BALLAST_MB"):
        job.track(ballast=Ballast(int(os.environ["BALLAST_MB"])))
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=12, seed=3)
    for x, y in job.steps(loader, epochs=100_000):
        time.sleep(10 * delay if asked_for("slow") else delay)
        if asked_for("hang"):
            (folder / f"{worker}.hang").unlink()  # the next process of this worker continues
            time.sleep(1e6)
        if asked_for("raise"):
            raise ValueError(f"the batch of step {job.step} is bad")
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
