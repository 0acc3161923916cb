"""The kit: a simulator of jobs on a cluster, with published measurements and workloads. It is not part of the project;
``--kit`` names its folder."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench_scheduling.product import Product, batches, measured
from elastrain.sizing.speedup import learned
from elastrain_operator.allocation.snapshot import Policy, Sharing
from elastrain_operator.policy.report.training import KEPT

FILES = ("sim.py", "model.py", "policies.py", "data/workloads.csv.gz")
WORKLOADS = "12345678"
FIGURES = ("mean", "median", "p99", "makespan", "rho_max", "rho_over_1", "restarts", "gpu_hours")


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one workload."""

    policy: str
    """tiresias, fair (the kit's), or a value of ``capacity.sharing``."""
    workload: str
    rescale: float = 30.0
    interval: int = 60
    load: str = "1.0"
    batch: str = "fixed"
    """fixed: the user's; free: from the application's own to its largest, by the rule of the product."""
    placement: str = "anew"
    """anew: the kit places all jobs whose size changes; kept: workers stay on their nodes."""

    @property
    def is_product(self) -> bool:
        return self.policy in list(Sharing)


@dataclass
class Played:
    """What came of a run."""

    run: Run
    figures: Mapping[str, float]
    sizes: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    """(time, GPUs of each application) at each decision."""
    jct: Mapping[str, float] = field(default_factory=dict)


def missing(kit: Path) -> str:
    """The first file that the folder lacks; empty: none."""
    return next((name for name in FILES if not (kit / name).is_file()), "")


def play(kit: Path, run: Run) -> Played:
    """Simulate one workload; in a process of its own, since the kit's modules have common names."""
    sys.path.insert(0, str(kit))
    sys.dont_write_bytecode = True
    import model

    import sim

    args = Namespace(
        policy=run.policy if not run.is_product else "greedy", load=run.load, knows="own",
        batch="fixed" if run.batch == "fixed" else "adapt", rescale=run.rescale,
        first=4, reach=4, interval=run.interval, power=-1.0,
    )  # fmt: skip
    sizes: list[tuple[float, Mapping[str, int]]] = []
    if run.is_product:
        policy = Policy(sharing=Sharing(run.policy), pause=run.rescale, startup=0.0)
        sim.Greedy = lambda _: _Recorded(Product(policy, model.NODES, model.PER_NODE), sizes)
        sim.Job = job(sim.Job)
        if run.placement == "kept":
            sim.assign = lambda jobs, wanted, _: kept(jobs, wanted, model.NODES, model.PER_NODE)
    apps = sim.load()
    rows = [r for r in sim.table("workloads") if (r["load"], r["workload"]) == (run.load, run.workload)]
    jobs, contention = sim.simulate(args, apps, rows)
    report = sim.report(args, apps, rows, jobs, contention)
    jct = {j.name: float(j.done - j.submitted) for j in jobs}
    return Played(run, {name: float(report[name]) for name in FIGURES}, sizes, jct)


def published(kit: Path, policy: str, load: str) -> dict[str, list[float]]:
    """Completion times by workload in the published logs."""
    sys.path.insert(0, str(kit))
    import model

    found: dict[str, list[float]] = {}
    for row in model.table("reference_jct"):
        if row["policy"] == policy and row["load"] == load:
            found.setdefault(row["workload"], []).append(float(row["jct"]))
    return found


def kept(jobs: Sequence[Any], wanted: Mapping[Any, int], nodes: int, per_node: int) -> dict[Any, tuple[int, ...]]:
    """Nodes for sizes as on a cluster: workers that stay do not move. A growing job takes its own nodes first, then the
    emptiest; a shrinking one leaves the nodes on which it has fewest."""
    out: dict[Any, tuple[int, ...]] = {}
    for job in jobs:
        here = Counter(job.nodes)
        stay = sorted(job.nodes, key=lambda n: (-here[n], n))[: wanted[job]]
        out[job] = job.nodes if len(stay) == len(job.nodes) else tuple(stay)
    free = Counter(dict.fromkeys(range(nodes), per_node))
    free.subtract(n for taken in out.values() for n in taken)
    for job in sorted(jobs, key=lambda j: -wanted[j]):
        taken = list(out[job])
        while len(taken) < wanted[job]:
            own = [n for n in dict.fromkeys(taken) if free[n] > 0]
            left = wanted[job] - len(taken)
            fits = [n for n in range(nodes) if free[n] >= min(left, per_node)]
            node = own[0] if own else min(fits, key=lambda n: (free[n], n)) if fits else max(free, key=free.__getitem__)
            taken.append(node)
            free[node] -= 1
        out[job] = tuple(taken)
    return out


class _Recorded:
    """A policy, and what it has decided."""

    def __init__(self, policy: Product, sizes: list[tuple[float, Mapping[str, int]]]) -> None:
        self._policy, self._sizes = policy, sizes

    def __call__(self, jobs: Sequence[Any], now: float) -> dict[Any, int]:
        made = self._policy(jobs, now)
        held: Counter[str] = Counter()
        for job, size in made.items():
            held[job.app.name] += size
        if not self._sizes or self._sizes[-1][1] != held:
            self._sizes.append((now, held))
        return made


def job(base: type) -> type:
    """The kit's job, with the operator's memory of step times, and batches by the rule of the product's runtime."""

    class Job(base):  # type: ignore[misc]
        def __init__(self, *of: Any, **by: Any) -> None:
            super().__init__(*of, **by)
            self.seen: dict[tuple[int, int, int | None], float] = {}
            self.model = _Steps(self)
            self.wanted = self.target or self.app.init
            """Samples of a step. The kit's micro-batches are of one size, so that a step may have a few more."""

        def rebatch(self) -> None:
            gpus, nodes = sum(self.placement), len(self.placement)
            chosen = batches(self)
            if chosen is not None:
                model = learned(measured(self), chosen.micro)
                self.wanted = model.next_batch(self.wanted, gpus, spans=nodes > 1, batches=chosen)
            self.atomic, self.accum = self.app.split(self.wanted, gpus)

    return Job


class _Steps:
    """In place of the kit's model of step times: what a job has run, as much as the operator keeps of it."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def add(self, placement: tuple[int, ...], _: int, step: float, waiting: float) -> None:
        job = self._job
        key = sum(placement), len(placement), None if job.target else job.wanted
        if key not in job.seen:
            job.seen[key] = step + job.accum * (step - waiting)
            for old in list(job.seen)[:-KEPT]:
                del job.seen[old]


def mean(played: Sequence[Played], figure: str) -> float:
    return float(np.mean([p.figures[figure] for p in played]))
