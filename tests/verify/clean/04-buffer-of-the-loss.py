"""A buffer of the model follows the loss of the job, in a callback."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 1))
    net.register_buffer("mean", torch.ones(()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)

    def follow():
        net.mean.lerp_(torch.tensor(job.loss), 0.5)

    job.on_commit(follow)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        loss = F.mse_loss(model(x), y) / net.mean
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
