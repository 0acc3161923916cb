"""The tables of the scheduling benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench_harness.tables import Table
from bench_scheduling import kit
from bench_scheduling.decisions import LIMITS, Decision
from bench_scheduling.kit import FIGURES, Played, Run

PUBLISHED = {"Tiresias, published": "tiresias", "Pollux, published (chooses batches)": "pollux"}
NOTES = (
    "efficient, balanced and equal are the product's allocate; a job knows what it has run",
    "Pollux chooses the batches: its published figures compare with --batch free only",
    "the simulator has no failures, no data loading, no checkpoint traffic, one kind of GPU (T4, 2018)",
)
DECISION_NOTES = ("processor seconds of allocate on one core; first: no job's model is fitted yet",)


def tables(done: Sequence[Played], folder: Path) -> list[Table]:
    """Means over the workloads, then the mean completion time of each workload."""
    settings = list(dict.fromkeys(_setting(p.run) for p in done))
    made = []
    for setting in settings:
        mine = [p for p in done if _setting(p.run) == setting]
        made += [_means(mine, mine[0].run), _by_workload(mine, mine[0].run, folder)]
    return made


def decisions(found: Sequence[Decision]) -> Table:
    rows = tuple(
        (
            d.sharing + ", free batches" * d.free,
            f"{d.jobs:,}",
            f"{d.gpus:,}",
            f"{d.median:.3f}",
            f"{d.first:.3f}",
            f"{LIMITS[d.jobs]:g}",
        )
        for d in found
    )
    return Table("Seconds of one decision", ("sharing", "jobs", "GPUs", "median", "first", "at most"), rows)


def _setting(run: Run) -> tuple[float, str, str, str]:
    return run.rescale, run.batch, run.placement, run.load


def _title(run: Run) -> str:
    places = "placed anew" if run.placement == "anew" else "workers stay on their nodes"
    batch = "the users' batches" if run.batch == "fixed" else "batches chosen by goodput"
    return f"load {run.load}, {batch}, rescale {run.rescale:g} s, decided each {run.interval} s at most, {places}"


def _means(done: Sequence[Played], run: Run) -> Table:
    header = ("policy", "mean", "median", "p99", "makespan", "rho max", "rho > 1", "rescales", "GPU-hours")
    rows = []
    for policy in dict.fromkeys(p.run.policy for p in done):
        mine = [p for p in done if p.run.policy == policy]
        rows.append((policy, *(_text(name, kit.mean(mine, name)) for name in FIGURES)))
    return Table(f"Means over {len({p.run.workload for p in done})} workloads: {_title(run)}", header, tuple(rows))


def _by_workload(done: Sequence[Played], run: Run, folder: Path) -> Table:
    workloads = list(dict.fromkeys(p.run.workload for p in done))
    rows = []
    for policy in dict.fromkeys(p.run.policy for p in done):
        mine = {p.run.workload: p.figures["mean"] for p in done if p.run.policy == policy}
        rows.append((policy, *(f"{mine[w]:,.0f}" for w in workloads)))
    for name, policy in PUBLISHED.items():
        jct = kit.published(folder, policy, run.load)
        if jct:
            rows.append((name, *(f"{np.mean(jct[w]):,.0f}" for w in workloads)))
    return Table(f"Mean completion time of each workload: {_title(run)}", ("policy", *workloads), tuple(rows))


def _text(name: str, value: float) -> str:
    return f"{value:.2f}" if name.startswith("rho") or name == "restarts" else f"{value:,.0f}"
