"""A training script for the tests: one model whose forward runs in the form ``MODE`` of the environment."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
mode = os.environ["MODE"]
reduced = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mode)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float32 if reduced else torch.float64)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, generator=generator)
labels = torch.randint(0, 3, (203,), generator=generator)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if mode.startswith("checkpoint"):
                x = checkpoint(block, x, use_reentrant=mode == "checkpoint, reentrant")
            else:
                x = block(x)
        return self.head(x)


# Products of 16 bits are rounded: only the same cut into micro-batches gives the same numbers.
with elastrain.join(numerics="bitwise" if reduced else "exact") as job:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    # The cheaper one where a model is compiled late: each rank compiles it for each cut of the batch.
    backend = "eager" if mode == "eager, then compiled" else "aot_eager"
    if mode == "compiled, then wrapped":
        model = job.wrap(torch.compile(net, backend=backend), optimizer=optimizer)
    else:
        model = job.wrap(net, optimizer=optimizer)
        if mode == "wrapped, then compiled":
            model.compile(backend=backend)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=9, enabled=mode == "fp16")
    job.track(scaler=scaler)
    options = {"micro_batches": 4} if reduced else {}
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=24, seed=3, **options)
    for x, y in job.steps(loader, epochs=epochs):
        if not (out / "run-free").exists():
            time.sleep(delay)
        if mode == "eager, then compiled" and job.step >= 8 and net._compiled_call_impl is None:
            net.compile(backend=backend)
        optimizer.zero_grad()
        with torch.autocast("cpu", reduced, enabled=reduced is not None):
            loss = nn.functional.cross_entropy(model(x), y)
            if mode == "two forwards":
                loss = loss + (model(x) - model(2 * x)).pow(2).mean()
        job.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

compiled = net._compiled_call_impl is not None or hasattr(model.module, "_orig_mod")
state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "step": job.step}
torch.save({**state, "compiled": compiled}, out / f"final-{os.getpid()}.pt")
