"""The rank that bench/gpu.py measures: an MLP on its device, Adam, and a line for every committed step.

Arguments: a folder for its log, and the layers' width.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

import elastrain

folder, width = Path(sys.argv[1]), int(sys.argv[2])
DIGEST_EVERY = 20

torch.manual_seed(0)
inputs = torch.randn(4096, 256)
labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()

with elastrain.join() as job, (folder / f"{os.environ['ELASTRAIN_WORKER']}.steps").open("w", buffering=1) as log:
    net = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU())
    net.append(nn.Linear(width, 4))
    model = job.wrap(net.to(job.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    job.track(optimizer=optimizer)

    def committed() -> None:
        line = {"at": time.monotonic(), "step": job.step, "world": job.world_size, "loss": job.loss}
        if job.step % DIGEST_EVERY == 0:  # bits, not numbers: replicas must be equal
            line["digest"] = [p.detach().view(torch.int32).sum(dtype=torch.int64).item() for p in net.parameters()]
        log.write(json.dumps(line) + "\n")

    job.on_commit(committed)
    loader = job.dataloader(torch.utils.data.TensorDataset(inputs, labels), global_batch_size=96, seed=1)
    for x, y in job.steps(loader, steps=10**9):
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x.to(job.device)), y.to(job.device)))
        optimizer.step()
