"""A layer trains from the sixth step on, in a group of its own."""

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
    optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    net[0].requires_grad_(False)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        if job.step == 5:
            net[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.02})
        loss = F.mse_loss(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
