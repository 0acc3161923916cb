"""Two models with an optimizer each, and two backwards in a loop body."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    one, other = nn.Linear(4, 2), nn.Linear(2, 1)
    steps = [torch.optim.Adam(m.parameters(), lr=0.05) for m in (one, other)]
    first, second = job.wrap(one, optimizer=steps[0]), job.wrap(other, optimizer=steps[1])
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        steps[0].zero_grad()
        job.backward(F.mse_loss(second(first(x)), y))
        steps[0].step()
        steps[1].zero_grad()
        job.backward(F.mse_loss(second(first(x).detach()), y))
        steps[1].step()
