"""One rank: a linear model whose samples each take a played time, or real computation that a cgroup holds back; under
elastrain or as a plain DDP script of torchrun.

``argv``: the system, a folder for results, the number of steps. ``SLOW_<rank>``: the scenario of a slow rank.
``GROUP_<rank>``: the file of the cgroup that it enters.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import elastrain
from bench_shares.speeds import BATCH, FAST, speed

ALONE_SECONDS = 3.0
"""For which a rank that computes measures its speed before it trains."""


class Computes:
    """Real computation for each sample, about 1 ms of a core."""

    def __init__(self) -> None:
        self._matrix = torch.randn(128, 128) / 12
        end = time.monotonic() + ALONE_SECONDS
        began, done = time.monotonic(), 0
        while time.monotonic() < end:
            self(4)
            done += 4
        self.speed = done / (time.monotonic() - began)
        """Samples per second, alone."""

    def __call__(self, samples: int) -> None:
        x = self._matrix
        for _ in range(samples * 64):
            x = torch.mm(x, self._matrix)


class Clock:
    """Plays the time of samples, or computes, and measures the second half of the steps."""

    def __init__(self, scenario: str | None, steps: int, computes: Computes | None) -> None:
        """``scenario``: of the slow rank; None: at full speed. ``computes``: instead of a played time."""
        self._computes = computes
        self._scenario, self._half, self._done = scenario, steps // 2, 0
        self._began = self._since = time.monotonic()
        self._ends = list[float]()
        """Of each step."""

    def computes(self, samples: int) -> None:
        if self._done == 0:
            self._began = time.monotonic()
        if self._computes:
            self._computes(samples)
            return
        now = time.monotonic() - self._began
        time.sleep(samples / (FAST * (speed(self._scenario, now) if self._scenario else 1.0)))

    def step(self) -> None:
        self._done += 1
        self._ends.append(time.monotonic() - self._began)
        if self._done == self._half:
            self._since = time.monotonic()

    def result(self) -> dict[str, Any]:
        """Samples per second, the rank's own speed alone in parts of the full one, and the end of each step."""
        began, end = self._since - self._began, time.monotonic() - self._began
        moments = [began + (end - began) * k / 1000 for k in range(1000)]
        own = sum(speed(self._scenario, t) for t in moments) / 1000 if self._scenario else 1.0
        if self._computes:
            own = self._computes.speed / FAST
        pace = (self._done - self._half) * BATCH / (end - began)
        return {"samples_per_second": pace, "speed": own, "ends": self._ends}


def _ddp(model: nn.Module, data: TensorDataset, clock: Clock, steps: int) -> None:
    dist.init_process_group("gloo")
    wrapped, part = DistributedDataParallel(model), BATCH // dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        x, y = data[:part]
        clock.computes(len(x))
        optimizer.zero_grad()
        nn.functional.mse_loss(wrapped(x), y).backward()
        optimizer.step()
        clock.step()
    dist.destroy_process_group()


def _job(model: nn.Module, data: TensorDataset, clock: Clock, steps: int) -> None:
    with elastrain.join() as job:
        wrapped = job.wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        job.track(optimizer=optimizer)
        job.on_commit(clock.step)
        batches: Iterator[list[torch.Tensor]] = job.steps(job.dataloader(data, global_batch_size=BATCH), steps=steps)
        for x, y in batches:
            clock.computes(len(x))
            optimizer.zero_grad()
            job.backward(nn.functional.mse_loss(wrapped(x), y))
            optimizer.step()


if __name__ == "__main__":
    system, folder, count, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), os.environ["RANK"]
    if group := os.environ.get(f"GROUP_{number}"):
        Path(group).write_text(str(os.getpid()))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(6400, 8), torch.randn(6400, 1))
    watch = Clock(os.environ.get(f"SLOW_{number}"), count, Computes() if group else None)
    (_ddp if system == "torchrun" else _job)(nn.Linear(8, 1), samples, watch, count)
    (folder / f"{number}.json").write_text(json.dumps(watch.result()))
