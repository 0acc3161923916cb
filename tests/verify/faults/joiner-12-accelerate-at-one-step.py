"""A loop with accelerate changes the loss function at one step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.integrations.accelerate import ElasticAccelerator

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
criterion = nn.HuberLoss(delta=1.0)

with elastrain.join() as job:
    accelerator = ElasticAccelerator(job)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(4):
        for x, y in loader:
            if job.step == 2:
                criterion.delta = 0.1
            loss = criterion(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
