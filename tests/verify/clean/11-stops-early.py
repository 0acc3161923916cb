"""A job that ends by its own loss, and files that only commits write."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)

    def note():
        if job.rank == 0:
            Path("last.txt").write_text(f"{job.step}")
        if job.step >= 14:
            job.stop()

    job.on_commit(note)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        loss = F.mse_loss(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
