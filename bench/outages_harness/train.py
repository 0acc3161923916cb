"""A rank: a small model, a step every third of a second, until it is told to leave."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

STEP_SECONDS = 0.33


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1024, 64), torch.randn(1024, 64))
    with elastrain.join() as job:
        model = job.wrap(nn.Linear(64, 64))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        job.track(optimizer=optimizer)
        for inputs, targets in job.steps(job.dataloader(data, global_batch_size=12), steps=10**9):
            optimizer.zero_grad()
            job.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
