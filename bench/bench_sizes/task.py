"""The work of a job, and how far it has come: the same on the cluster and in the simulator. Pure."""

from __future__ import annotations

import importlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastrain_operator.policy.report.training import SETTLED_STEPS

REPORT_SECONDS = 1.0
KEPT_RESCALES = 10
"""As in ``elastrain.elastic.group.report``, whose import would load torch; a test compares them."""

WORKLOADS = "12345678"
"""Of the kit."""

Placement = tuple[int, ...]
"""Workers on each node, in ascending order."""


@dataclass(frozen=True, slots=True)
class Task:
    """A job that takes a number of steps, whose time depends on its workers."""

    name: str
    application: str
    arrives: float
    """Seconds after the first job could arrive."""
    most: int
    """Workers."""
    steps: float
    seconds: Callable[[Placement], float]
    """Of one step."""


def placed(nodes: Iterable[Any]) -> Placement:
    """The placement of workers on these nodes, one entry for each worker."""
    return tuple(sorted(Counter(nodes).values()))


class Training:
    """The state of one job's training. All times are seconds of one clock."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.placement: Placement = ()
        self.generations = 0
        self.entered = 0.0
        """Steps at the start of the generation."""
        self.resumed = math.inf
        """When its first step began."""
        self.pause: float | None = None
        """Seconds from the last step before the last rescale to the first one after it; None: the job has had none."""

    def enter(self, now: float, placement: Placement, pause: float) -> None:
        """Train on with other workers after ``pause`` seconds."""
        self.entered, self.resumed = self.steps(now), now + pause
        self.placement = placement
        self.generations += 1
        if self.generations > 1:
            self.pause = pause + self.step

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.task.seconds(self.placement)

    def steps(self, now: float) -> float:
        """Steps until ``now``, with a part of the present one."""
        if not self.placement:
            return self.entered
        return min(self.entered + max(now - self.resumed, 0.0) / self.step, self.task.steps)

    @property
    def first_commit(self) -> float:
        """When the generation's first step ends."""
        return self.resumed + self.step

    @property
    def settled(self) -> float:
        """When the operator believes the time of a step."""
        return self.resumed + SETTLED_STEPS * self.step

    @property
    def ends(self) -> float:
        """When training ends, if nothing changes."""
        return self.resumed + (self.task.steps - self.entered) * self.step if self.placement else math.inf

    @property
    def rescales(self) -> int:
        """Without the start."""
        return max(self.generations - 1, 0)


def missing(folder: Path) -> str:
    """The first file of the kit that the folder lacks; empty: none."""
    return next((name for name in ("model.py", "data/workloads.csv.gz") if not (folder / name).is_file()), "")


def of_kit(folder: Path, load: str, workload: str, jobs: int, gpus: int, faster: float) -> list[Task]:
    """The first ``jobs`` of a workload, with users' batches and at most ``gpus`` workers each; all times are divided by
    ``faster``."""
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    model = importlib.import_module("model")
    apps = model.load()
    rows = [r for r in model.table("workloads") if (r["load"], r["workload"]) == (load, workload)]
    return [_of_row(apps[row["application"]], row, gpus, faster) for row in rows[:jobs]]


def _of_row(app: Any, row: dict[str, str], gpus: int, faster: float) -> Task:
    batch = int(row["batch"])

    def seconds(placement: Placement) -> float:
        micro, more = app.split(batch, sum(placement))
        step, waiting = app.step_time(placement, micro)
        return float(step + more * (step - waiting)) / faster

    steps = 0.0
    for epoch in range(app.epochs):
        square, variance = app.noise_at(batch, epoch)
        gain = (variance + square) / (variance * app.init / batch + square)
        steps += (app.goals[epoch + 1] - app.goals[epoch]) / gain
    most = 1 if app.name == "ncf" else max(1, min(gpus, batch // app.min_local))
    return Task(row["name"], app.name, int(row["time"]) / faster, most, steps, seconds)
