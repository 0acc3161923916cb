"""Jobs of different scalability on few nodes find sizes close to the best, by steps that they have run themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import permutations, product

import pytest

from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import Job, Node, Policy, Sharing, Snapshot, Worker, WorkerShape
from elastrain_resource.sizing.speedup import Measured

START = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
TICK, PAUSE, BEGINS, MEASURES = 5.0, 1.5, 5.0, 5.0
"""Seconds: between two decisions, of a rescale, until a new worker trains, until the steps of a size are measured."""
EFFICIENT = Policy(sharing=Sharing.EFFICIENT, hysteresis=5.0, pause=PAUSE)
DECISIONS = 100
FIXED = {"flat": 0.9, "half": 0.5, "well": 0.0}
"""Seconds of a step that more workers do not shorten, of one second with one worker."""


@dataclass
class Trained:
    """A job, and what it has measured."""

    name: str
    came: float
    nodes: dict[str, str] = field(default_factory=dict)
    """Worker → its node; empty: not bound."""
    size: int = 0
    trains: frozenset[str] = frozenset()
    since: float = 0.0
    resized: float | None = None
    generations: int = 0
    born: int = 0
    seen: dict[tuple[int, int], float] = field(default_factory=dict)
    """(workers, nodes) → seconds of a step."""

    def live(self, now: float) -> None:
        bound = frozenset(w for w, node in self.nodes.items() if node)
        if bound and bound != self.trains and len(bound) == self.size:
            self.trains, self.since, self.generations = bound, now + BEGINS, self.generations + 1
        if self.nodes and self.trains == set(self.nodes) and now >= self.since + MEASURES:
            self.seen[len(self.nodes), len(set(self.nodes.values()))] = seconds(self.name, len(self.nodes))

    def view(self) -> Job:
        workers = tuple(Worker(w, node, ONE.demand, trains=w in self.trains) for w, node in self.nodes.items())
        return Job(
            self.name, "ns", self.name, 1, 8, ONE, created=START.timestamp() + self.came, workers=workers,
            size=self.size, trains=bool(self.trains), pause=PAUSE if self.generations > 1 else None,
            resized=None if self.resized is None else START + timedelta(seconds=self.resized),
            rescales=max(self.generations - 1, 0),
            measured=tuple(Measured(w, nodes, seconds) for (w, nodes), seconds in self.seen.items()),
        )  # fmt: skip

    def obey(self, size: int, release: frozenset[str], now: float) -> None:
        if size != self.size:
            self.resized = now if self.size else None
            self.size = size
        stay = [w for w in self.nodes if w not in release][:size]
        new = [f"{self.name}-{self.born + i}" for i in range(size - len(stay))]
        self.born += len(new)
        self.nodes = {w: self.nodes.get(w, "") for w in (*stay, *new)}


def seconds(name: str, workers: int) -> float:
    return FIXED[name] + (1 - FIXED[name]) / workers


def played(order: tuple[str, ...], gap: float, *, packed: bool, nodes: int = 2, per_node: int = 4) -> list[Trained]:
    """Jobs that come ``gap`` seconds one after the other. ``packed``: the scheduler fills one node first."""
    cluster = tuple(Node(f"n{i}", {GPU: per_node, "pods": 99}) for i in range(nodes))
    jobs = [Trained(name, gap * i) for i, name in enumerate(order)]
    for number in range(1, int(gap * (len(order) - 1) / TICK) + DECISIONS):
        now = number * TICK
        here = [job for job in jobs if job.came <= now]
        _bind(here, cluster, per_node, packed=packed)
        for job in here:
            job.live(now)
        shares = allocate(
            Snapshot(cluster, tuple(job.view() for job in here)), EFFICIENT, START + timedelta(seconds=now)
        ).shares
        for job in here:
            job.obey(shares[job.name].size or 0, shares[job.name].release, now)
    return jobs


def _bind(jobs: list[Trained], cluster: tuple[Node, ...], per_node: int, *, packed: bool) -> None:
    used = Counter(node for job in jobs for node in job.nodes.values())
    for job in jobs:
        for worker in [w for w, node in job.nodes.items() if not node]:
            free = [n.name for n in cluster if used[n.name] < per_node]
            if free:
                job.nodes[worker] = min(free, key=lambda n: (-used[n] if packed else used[n], n))
                used[job.nodes[worker]] += 1


def cost(sizes: Mapping[str, int], equal: int = 3) -> float:
    """The sum that ``efficient`` is to make least: seconds of a step as parts of those with an equal share."""
    return sum(seconds(name, size) / seconds(name, equal) for name, size in sizes.items())


BEST = min(
    (dict(zip(FIXED, sizes, strict=True)) for sizes in product(range(1, 7), repeat=3) if sum(sizes) == 8), key=cost
)


def test_the_best_sizes_are_those_of_the_documentation():
    assert BEST == {"flat": 1, "half": 2, "well": 5}


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "spread"])
@pytest.mark.parametrize("gap", [0.0, 60.0], ids=["together", "one after the other"])
def test_three_jobs_settle_within_5_percent_of_the_best_sizes_whatever_their_order(gap, packed):
    for order in permutations(FIXED):
        jobs = played(order, gap, packed=packed)
        sizes = {job.name: job.size for job in jobs}
        assert cost(sizes) <= 1.05 * cost(BEST), f"{order}: {sizes}"
        assert max(job.generations for job in jobs) <= 9, "six rescales are free, and one for each 5 minutes"
