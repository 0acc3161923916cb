"""A rank: a million parameters with Adam, 12 MB of state, trained until it is told to leave."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

FOREVER = 10**9


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1024, 512), torch.randn(1024, 512))
    with elastrain.join() as job:
        model = job.wrap(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        job.track(optimizer=optimizer)
        for inputs, targets in job.steps(job.dataloader(data, global_batch_size=12), steps=FOREVER):
            optimizer.zero_grad()
            job.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()


if __name__ == "__main__":
    main()
