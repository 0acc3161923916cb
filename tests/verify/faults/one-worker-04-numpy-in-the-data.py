"""A data set augments its samples by a numpy generator of its own."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import elastrain

torch.manual_seed(0)


class Augmented(Dataset):
    def __init__(self):
        self.x = torch.randn(64, 4)
        self.draw = np.random.default_rng(0)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = self.x[i] * self.draw.uniform(0.5, 1.5)
        return x, x.sum().sin().reshape(1)


data = Augmented()

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        loss = F.mse_loss(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
