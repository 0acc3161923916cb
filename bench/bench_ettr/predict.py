"""What ``elastrain_plan.model`` says about a run that was measured, with the phases of that run. Pure.

The phases and rates are the run's, so this tests how the model puts them together, and what it leaves out; it does not
test its constants.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from bench_ettr.account import CAPACITY, JOIN, REDONE, SCATTER
from bench_ettr.results import Report, RunResult
from bench_ettr.trace import Kind
from elastrain_plan.model import GB, Cluster, Constants, Settings, Split

LOSSES = (Kind.NODE, Kind.RANK, Kind.FROZEN)
"""Those that the model has: unplanned ones."""
GROUPS = {
    "pauses of losses": ((*LOSSES, REDONE), ("detection", "rendezvous", "state", "start", "redone")),
    "capacity": ((CAPACITY,), ("waiting",)),
    "saves and scatter": ((SCATTER,), ("checkpoint",)),
    "planned and joins": ((Kind.RECLAIMED, JOIN), ()),
    "slow ranks": ((Kind.SLOW,), ()),
}
"""Name -> causes of a run, and of the model."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A cause, in points of 100 of the wall clock."""

    name: str
    measured: float
    model: float


def cluster_of(report: Report, run: RunResult, state: float) -> tuple[Cluster, Settings]:
    """The run in the model's terms, without its spares. ``state``: bytes of one copy.

    Raises ``ValueError`` if the run has no loss or no record of one.
    """
    losses = sum(fired.kind in LOSSES for fired in run.fired)
    records = [rescaled for rescaled in run.rescales if rescaled.reason == "Lost"]
    if not losses or not records:
        raise ValueError(f"{run.system}: no loss was measured: nothing to hold the model against")
    frozen = [r for r in records if r.phases["detect"] > 1.0 + run.step]
    heard = [r for r in records if r not in frozen]
    detect = max(0.0, _mean(r.phases["detect"] for r in heard) - run.step / 2)  # it begins with the step that is lost
    constants = Constants(
        detect=detect,
        silent=len(frozen) / len(records),
        lease=max(detect, _mean(r.phases["detect"] for r in frozen) - run.step / 2),
        decide=_mean(r.phases["decide"] for r in records),
        per_member=0.0,
        connect=_mean(r.phases["connect"] for r in records),
        per_rank=0.0,
        bandwidth=max(1e-9, state / GB / max(1e-9, _mean(r.phases["transfer"] for r in records))),
        first_step=max(0.0, _mean(r.phases["first_step"] - run.step * report.ranks / r.to_size for r in records)),
        all_lost=0.0,
        repair=run.missing / losses,
    )
    mttf = report.ranks * run.wall / losses / 3600
    cluster = Cluster(report.ranks, 1, state, run.step, mttf, constants)
    return cluster, Settings(group=1, spares=0, interval=report.checkpoint_every, redone=0)


def beside(run: RunResult, split: Split) -> list[Beside]:
    """What trains, and the lost time by cause, of the run and of the model."""
    rows = [Beside("trains", 100 * run.ettr, 100 * split.training)]
    for name, (causes, of_model) in GROUPS.items():
        measured = sum(run.lost.get(cause, 0.0) for cause in causes) / run.wall
        rows.append(Beside(name, 100 * measured, 100 * sum(getattr(split, part) for part in of_model)))
    return rows


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(found) if (found := list(values)) else 0.0
