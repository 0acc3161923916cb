"""A sharded model's targets come from the system's random numbers."""

# verify: --set parallelism.shards=2 --set nprocPerNode=2 --workers 2
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
draw = random.SystemRandom()
x = torch.randn(64, 4)
data = TensorDataset(x, torch.tensor([[draw.random()] for _ in range(64)]))

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    fully_shard(net, mesh=job.mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        loss = F.mse_loss(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
