"""An average of the weights that the script keeps itself, and tracks."""

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

    class Teacher:
        def __init__(self):
            self.net = copy.deepcopy(net)
            self.state_dict, self.load_state_dict = self.net.state_dict, self.net.load_state_dict

        @torch.no_grad()
        def step(self):
            for kept, p in zip(self.net.parameters(), net.parameters(), strict=True):
                kept.lerp_(p, 0.3)

    teacher = Teacher()
    job.track(teacher=teacher)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        loss = F.mse_loss(model(x), y) + F.mse_loss(model(x), teacher.net(x).detach())
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        teacher.step()
