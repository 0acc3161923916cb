"""A loop with accelerate that logs each epoch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.integrations.accelerate import ElasticAccelerator

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    accelerator = ElasticAccelerator(job)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 4))
    for epoch in range(4):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        accelerator.print(f"epoch {epoch}: {job.loss}")
