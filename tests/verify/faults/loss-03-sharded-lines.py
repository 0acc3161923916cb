"""Rank 0 of a sharded model writes a line for each loop body."""

# verify: --set parallelism.shards=2 --set nprocPerNode=2 --workers 2
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import elastrain

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    fully_shard(net, mesh=job.mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        if job.rank == 0 and job.step > 0:
            with Path("begun.txt").open("a") as file:
                file.write(f"{job.step}\n")
        loss = F.mse_loss(model(x), y)
        job.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
