"""A training script for the tests that changes its loss, its rate, its groups and its weights at a step."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs, labels = torch.randn(96, 6, generator=generator), torch.randint(0, 3, (96,), generator=generator)

with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    net[0].requires_grad_(False)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
    model = job.wrap(net, optimizer=optimizer)
    made = []

    def smooth():
        made.append("smooth")
        criterion.label_smoothing = 0.3

    def unfreeze():
        made.append("unfreeze")
        net[0].requires_grad_(True)
        optimizer.add_param_group({"params": net[0].parameters(), "lr": 0.01})

    def slow_down():
        made.append("slow down")
        for group in optimizer.param_groups:
            group["lr"] *= 0.5  # a part of the state: a joiner does it before it loads that

    @torch.no_grad()
    def restart():
        made.append("restart")
        net[2].bias.copy_(torch.randn(3))

    job.at(9, slow_down)
    job.at(4, smooth)
    job.at(6, unfreeze)
    job.at(9, restart)
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=12, seed=3)
    for x, y in job.steps(loader, epochs=epochs):
        if not (out / "run-free").exists():
            time.sleep(delay)
        optimizer.zero_grad()
        job.backward(criterion(model(x), y))
        optimizer.step()

state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "smoothing": criterion.label_smoothing}
torch.save({**state, "step": job.step, "made": made}, out / f"final-{os.getpid()}.pt")
