"""A training script for the tests with ``spec.batch``: its batch changes every third step if ``FACTORS`` says to which.

``EVERY``: job.every() so many steps. ``OPTIONS``: of the loader. ``SAMPLE``: seconds that a sample takes, as this rank
measures it.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastrain
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain_batches import chosen

out, epochs, delay = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(203, 6, dtype=torch.float64, generator=generator)
labels = (inputs[:, :3] + 0.5 * torch.randn(203, 3, dtype=torch.float64, generator=generator)).argmax(1)
chosen.CHANGE_SECONDS = chosen.REVIEW_SECONDS = 0
chosen.MEASURE_EVERY = 1
if "FACTORS" in os.environ:
    factors, calls = [int(f) for f in os.environ["FACTORS"].split(",")], itertools.count()

    def choose(*, factor: int, **_: object) -> int:
        """The one after the present one, in every third call."""
        at = factors.index(factor) if factor in factors else -1
        return factor if next(calls) % 3 else factors[(at + 1) % len(factors)]

    chosen.choose = choose

if "SAMPLE" in os.environ:
    Heartbeat.spent = property(
        lambda _: float(os.environ["SAMPLE"]) * sum(len(part.indices) for part in job._loop.step.parts)
    )

with elastrain.join() as job:
    model = job.wrap(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.99)
    job.track(optimizer=optimizer, scheduler=scheduler)
    commits, noises, paused, rate = [], [], [], 1.0
    job.on_commit(lambda: commits.append((job.step, job._loop.batch.span, rate)))
    job.on_commit(lambda: noises.append(getattr(job._loop.batch, "noise", None)))
    if "EVERY" in os.environ:
        job.every(int(os.environ["EVERY"]), lambda: paused.append(job.step))
    options = json.loads(os.environ.get("OPTIONS", "{}"))
    loader = job.dataloader(TensorDataset(inputs, labels), global_batch_size=10, seed=3, **options)
    largest = 0
    for x, y in job.steps(loader, epochs=epochs):
        if not (out / "run-free").exists():
            time.sleep(delay)
        largest = max(largest, len(x))
        optimizer.zero_grad()
        job.backward(nn.functional.cross_entropy(model(x), y))
        rate = job._loop.batch.learning_rate
        optimizer.step()
        scheduler.step()

state = {
    "model": model.module.state_dict(), "step": job.step, "commits": commits, "noises": noises, "paused": paused,
    "lr": scheduler.get_last_lr()[0], "group": optimizer.param_groups[0]["lr"], "largest": largest,
    "effective": job.effective_samples,
}  # fmt: skip
torch.save(state, out / f"final-{os.getpid()}.pt")
