"""A stock DDP script for torchrun, without any use of elastrain.

Usage: train_ddp.py DIRECTORY STEPS. Resumes from DIRECTORY/model.pt and appends one line per step to DIRECTORY/log.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

directory, steps = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = 0
checkpoint = directory / "model.pt"
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    start = state["step"]

for step in range(start, steps):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    if rank == 0:
        if step % 5 == 4:
            torch.save({"model": model.state_dict(), "step": step + 1}, directory / "model.tmp")
            (directory / "model.tmp").rename(checkpoint)
        with (directory / "log").open("a") as log:
            master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            log.write(f"{time.monotonic():.3f} {step} {world} {master} {os.getppid()}\n")
    time.sleep(0.05)
dist.destroy_process_group()
