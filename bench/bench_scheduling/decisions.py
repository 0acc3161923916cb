"""The time of one decision of the allocator."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench_scheduling.product import GPU, KIND, START
from elastrain.sizing import speedup
from elastrain.sizing.speedup import Batches, Measured
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import Job, Node, Policy, Sharing, Snapshot, Worker

RUNS = 5
BASE = 64
"""Samples of the smallest batch."""
SIZES = ((160, 64, 4), (5000, 10_000, 8))
"""(jobs, GPUs, GPUs of a node)"""
LIMITS = {160: 0.05, 5000: 2.0}
"""Jobs → seconds of processor time that a decision may take."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The processor time of a decision: the median of several."""

    sharing: str
    free: bool
    """The jobs choose their batches."""
    jobs: int
    gpus: int
    first: float
    """Seconds if no job's model is fitted yet, as after a restart of the operator."""
    median: float


def crowd(jobs: int, gpus: int, per_node: int, free: bool) -> Snapshot:
    """Jobs that train with equal shares; each third scales well, fairly, badly, and a tenth has not trained yet."""
    nodes = tuple(Node(f"n{i:05}", {GPU: per_node, "pods": 110}) for i in range(gpus // per_node))
    each, made, at = max(gpus // jobs, 1), [], 0
    for i in range(jobs):
        trains = i % 10 > 0 and at + each <= gpus
        workers = [Worker(f"j{i}-{k}", f"n{(at + k) // per_node:05}", KIND.demand, trains=True) for k in range(each)]
        at += each * trains
        fixed = (0.02, 0.2, 0.6)[i % 3] + i * 1e-6
        known = tuple(Measured(w, 1, fixed + (1 - fixed) / w, BASE if free else None) for w in (1, 2, 4))
        batches = Batches(BASE, 64 * BASE, noise=1000.0 + i, micro=4 * BASE) if free else None
        made.append(
            Job(
                f"j{i}", f"ns{i % 20}", f"j{i}", 1, 16, KIND, created=START.timestamp() - 60.0 * i,
                workers=tuple(workers) if trains else (), size=each * trains, trains=trains, pause=1.0,
                measured=known if trains else (), batches=batches,
            )
        )  # fmt: skip
    return Snapshot(nodes, tuple(made))


def measure() -> list[Decision]:
    found = []
    for sharing, free in ((Sharing.EQUAL, False), (Sharing.EFFICIENT, False), (Sharing.EFFICIENT, True)):
        for jobs, gpus, per_node in SIZES:
            snapshot, times = crowd(jobs, gpus, per_node, free), []
            speedup.learned.cache_clear()
            speedup.curve.cache_clear()
            for _ in range(RUNS + 1):
                began = time.process_time()
                allocate(snapshot, Policy(sharing=sharing), START)
                times.append(time.process_time() - began)
            found.append(Decision(sharing, free, jobs, gpus, times[0], sorted(times[1:])[RUNS // 2]))
    return found
