"""L-BFGS evaluates the loss several times between its updates."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=16)
    for x, y in job.steps(loader, steps=12):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            return job.backward(F.mse_loss(model(x), y))

        optimizer.step(closure)
