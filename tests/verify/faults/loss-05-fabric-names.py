"""Rank 0 of a loop with Fabric notes each loop body in a file, by the number of those before."""

from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.integrations.lightning import ElasticStrategy

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())

with elastrain.join() as job:
    fabric = Fabric(accelerator="cpu", devices=1, strategy=ElasticStrategy(job))
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = job.dataloader(data, global_batch_size=8)
    for x, y in job.steps(loader, steps=16):
        if fabric.is_global_zero and job.step > 0:
            notes = Path("notes.txt")
            before = notes.read_text() if notes.exists() else ""
            notes.write_text(before + f"body {before.count(chr(10))}\n")
        loss = F.mse_loss(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
