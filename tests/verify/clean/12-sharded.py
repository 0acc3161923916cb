"""A sharded model with a clipped norm and a schedule."""

# verify: --set parallelism.shards=2 --set nprocPerNode=2 --workers 2
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
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    model = job.wrap(net, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    job.track(scheduler=scheduler)
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        loss = F.mse_loss(model(x), y)
        job.backward(loss)
        job.clip_grad_norm_(0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
