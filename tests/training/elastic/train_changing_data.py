"""A training script for the tests that changes its data set between loops and at a step; a worker process loads it.

The loss is the mean version of the samples: the weight moves by it, so that one sample of another version shows.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)


class Versions(Dataset):
    epoch = changed = 0

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([1.0 + self.epoch + 100 * self.changed], dtype=torch.float64)


with elastrain.join() as job:
    net = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    model, dataset = job.wrap(net, optimizer=(optimizer := torch.optim.SGD(net.parameters(), lr=1.0))), Versions()
    loader = job.dataloader(dataset, global_batch_size=12, num_workers=1)
    job.at(20, lambda: setattr(dataset, "changed", 1))
    seen = {}
    for epoch in job.epochs(loader, epochs):
        dataset.epoch = epoch
        for x in job.steps(loader, epochs=epoch + 1):
            if not (out / "run-free").exists():
                time.sleep(delay)
            optimizer.zero_grad()
            job.backward(model(x).mean())
            optimizer.step()
            if job.committed:
                seen[job.step] = x.flatten().tolist()

torch.save({"weight": net.weight.item(), "step": job.step, "seen": seen}, out / f"final-{os.getpid()}.pt")
