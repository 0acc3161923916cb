"""The ranks agree on how many epochs were seen; no checkpoint has it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(16, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
seen = 0

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
        seen = job.all_reduce(seen, "max") + 1
        optimizer.param_groups[0]["lr"] = 0.1 / seen
