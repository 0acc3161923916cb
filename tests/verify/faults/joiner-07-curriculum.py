"""A data set is made harder after each epoch, in the processes that have seen it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import elastrain

torch.manual_seed(0)


class Harder(Dataset):
    level, x = 1.0, torch.randn(16, 4)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        x = self.x[i] * self.level
        return x, x.sum().sin().reshape(1)


data = Harder()

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=8)
    for epoch in job.epochs(loader, 8):
        for x, y in job.steps(loader, epochs=epoch + 1):
            loss = F.mse_loss(model(x), y)
            job.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        data.level += 0.2
