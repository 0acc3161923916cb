"""A training script for the tests that draws random numbers wherever a script can: ``MODE`` is its shape."""

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
mode = os.environ["MODE"]
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0), np.random.seed(0), random.seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(83, 6, generator=generator)
labels = torch.randint(0, 3, (83,), generator=generator)


@torch.no_grad()
def perturb(values: list[torch.Tensor], scale: float = 1e-2) -> None:
    """Add noise of all generators."""
    for value in values:
        value.add_(torch.randn(value.shape) * np.random.rand(), alpha=scale * random.random())


class Langevin(torch.optim.SGD):
    """Draws in its update."""

    def step(self, closure=None):
        loss = super().step(closure)
        perturb([p for group in self.param_groups for p in group["params"]])
        return loss


class Restless(torch.optim.lr_scheduler.LRScheduler):
    """Draws the next learning rate."""

    def get_lr(self):
        return [0.05 + 0.05 * random.random()] * len(self.optimizer.param_groups)


with elastrain.join() as job:
    first, last = nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Linear(16, 3)
    net = nn.Sequential(first, nn.Dropout(0.3 if mode == "micro-batches" else 0.0), last)
    model = job.wrap(net)
    optimizers = [Langevin(part.parameters(), lr=0.05) for part in (first, last)]
    scheduler = Restless(optimizers[0])
    job.track(one=optimizers[0], other=optimizers[1], scheduler=scheduler)
    drawn: dict[int, torch.Tensor] = {}

    def gradients() -> list[torch.Tensor]:
        return [p.grad for p in net.parameters() if p.grad is not None]

    def update(x, y):
        """One backward: noise on its gradients, in updates, in the schedule, and behind them."""
        job.backward(nn.functional.cross_entropy(model(x), y))
        if job.synchronised:
            job.clip_grad_norm_(1.0)
            perturb(gradients())
        with torch.no_grad():
            model(x)  # another one, between a backward and its update
        for optimizer in optimizers:
            optimizer.step()
        scheduler.step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    def several(x, y):
        """Two backwards, with noise on inputs before each, and on gradients behind each."""
        for optimizer, number in zip(optimizers, range(2), strict=True):
            z = torch.randn(len(x), 1)
            drawn[2 * job.step + number] = z[:1].clone()
            job.backward(nn.functional.cross_entropy(model(x + 0.0 * z), y))
            perturb(gradients())
            optimizer.step()
            net.zero_grad()

    def closure(x, y):
        """Noise on inputs in each evaluation, and on parameters in the update behind them."""

        def evaluate():
            net.zero_grad()
            torch.randn(len(x), 1)
            return job.backward(nn.functional.cross_entropy(model(x), y))

        for optimizer in optimizers:
            optimizer.step(evaluate)

    weights = list(net.parameters())
    job.on_commit(lambda: perturb(weights, 1e-3))
    job.on_commit(lambda: perturb(weights, 1e-3))
    job.every(5, lambda: perturb(weights))
    body = {"several": several, "closure": closure}.get(mode, update)
    options = {"micro_batch_size": 1} if mode == "micro-batches" else {}
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=12, seed=3, **options)
    for epoch in job.epochs(loader, epochs):
        for x, y in job.steps(loader, epochs=epoch + 1):
            if not (out / "run-free").exists():
                time.sleep(delay / (4 if options else 1))
            body(x, y)
        if job.rank >= 0:
            perturb(weights)

state = {"net": net.state_dict(), "scheduler": scheduler.state_dict(), "step": job.step}
torch.save({**state, "drawn": drawn}, out / f"final-{os.getpid()}.pt")
