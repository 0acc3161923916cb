"""Code after the first epoch changes a layer; a joiner leaves that epoch out."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(TensorDataset(*data[:16]), global_batch_size=8)
    for epoch in job.epochs(loader, 8):
        for x, y in job.steps(loader, epochs=epoch + 1):
            loss = F.mse_loss(model(x), y)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if epoch == 0:
            net[1].negative_slope = 0.9
