"""A training script for the tests that does in its steps what it must not, or must be right: ``MODE``."""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
mode = os.environ["MODE"]
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(48, 6, generator=generator)
labels = torch.randint(0, 3, (48,), generator=generator)
running = 0.0
seen = []


def apply_in_hooks() -> None:
    """As in torch's tutorial on optimizers within the backward."""
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in net.parameters()}
    job.track(**{f"of_{number}": o for number, o in enumerate(optimizers.values())})

    def hook(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(hook)


def change_layers() -> None:
    if mode == "replaced":
        net[2] = nn.Linear(8, 3)
        optimizer.add_param_group({"params": net[2].parameters()})
    elif mode == "added":
        net.add_module("3", nn.Linear(3, 3))
    elif mode == "removed":
        net[2].bias = None
    elif mode == "deleted":
        del net[2].bias
        net[2].register_buffer("bias", torch.zeros(3))
    elif mode == "unused layers":  # the criterion is a module of its own, made anew
        nn.Sequential(nn.Linear(2, 2), nn.CrossEntropyLoss())


with elastrain.join() as job:
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    several = "SEVERAL" in os.environ
    model = job.wrap(net, optimizer=None if mode == "before the loop" else optimizer)
    if mode == "post-accumulate hooks":
        apply_in_hooks()
    elif mode == "optimizer in backward":
        _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
        job.track(**{f"of_{n}": p._in_backward_optimizers[0] for n, p in enumerate(net.parameters())})
    elif mode == "before the loop":
        net[2] = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        job.track(optimizer=optimizer)
    if several:
        job.wrap(nn.Linear(1, 1))
    micro = {"micro_batch_size": 4} if mode in ("partial", "loss of micro-batches") else {}
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=12, seed=3, **micro)
    bodies = 0
    for epoch in job.epochs(loader, 2):
        if epoch:
            change_layers()
        for x, y in job.steps(loader, epochs=epoch + 1):
            bodies += 1
            output = model(x)
            if mode == "tensor hook":
                output.register_hook(lambda _: optimizer.step())
            elif mode == "before backward":
                optimizer.step()
            elif mode == "in the body" and job.step == 2:
                net[2] = nn.Linear(8, 3)
                output = model(x)
            optimizer.zero_grad()
            job.backward(nn.functional.cross_entropy(output, y))
            if mode != "partial" or bodies % 3 == 1:
                optimizer.step()
            running += job.loss
            if job.committed:
                seen.append(job.loss)

torch.save({"seen": seen, "running": running, "net": net.state_dict()}, out / f"final-{os.getpid()}.pt")
