"""An average of the weights, kept by hand in the loop body, is a teacher for the next step."""

import copy

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
    teacher = copy.deepcopy(net)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        loss = F.mse_loss(model(x), y) + F.mse_loss(model(x), teacher(x).detach())
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, p in zip(teacher.parameters(), net.parameters(), strict=True):
                kept.lerp_(p, 0.3)
