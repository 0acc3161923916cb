"""Sums over tokens of micro-batches, with their count, and dropout."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=8, micro_batch_size=3)
    for x, y in job.steps(loader, steps=16):
        loss = (F.mse_loss(model(x), y, reduction="none") * (y > 0)).sum()
        job.backward(loss, count=(y > 0).sum())
        optimizer.step()
        optimizer.zero_grad()
