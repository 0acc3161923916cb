"""A loss function that changes from a step on, in whatever process."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
criterion = nn.HuberLoss(delta=1.0)

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        criterion.delta = 0.1 if job.step >= 3 else 1.0
        loss = criterion(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
