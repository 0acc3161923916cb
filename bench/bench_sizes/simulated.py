"""Plays jobs under a virtual clock, with sizes by the product's ``allocate``: as the operator decides, on events.

A decision follows each event (a job arrives, begins, is measured, or ends) after a delay, and the time that the last
decision has named. Workers that leave free their room at once; new ones train after ``Delays.start``.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bench_sizes.task import REPORT_SECONDS, Task, Training, placed
from elastrain.sizing.leaving import WorkerFacts, leave_order
from elastrain.sizing.speedup import Measured
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import Allocation, Job, Node, Policy, Share, Snapshot, Worker, WorkerShape
from elastrain_operator.job.plan import STATUS_INTERVAL
from elastrain_operator.policy.report.training import KEPT

GPU = "nvidia.com/gpu"
KIND = WorkerShape(((GPU, 1), ("pods", 1)))
START = datetime(2030, 1, 1, tzinfo=UTC)
READ_SECONDS = REPORT_SECONDS + STATUS_INTERVAL
"""The operator reads the first report of a generation at once, and mere steps so long after that."""


@dataclass(frozen=True, slots=True)
class Delays:
    """What a cluster takes for a change of sizes, in seconds."""

    admission: float = 0.0
    """From a job's creation until its first target is written."""
    decision: float = 0.0
    """From another event until targets are written."""
    start: float = 0.0
    """From the target until new workers train."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes."""

    nodes: int
    gpus: int
    """Of each node."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job. Times are seconds after the first job could arrive."""

    began: float
    """Its first generation."""
    ended: float
    rescales: int
    gpu_seconds: float


@dataclass(eq=False)
class _Job:
    training: Training
    workers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Number of a worker → its node, and whether it trains."""
    next: int = 0
    resized: datetime | None = None
    measured: dict[tuple[int, int], float] = field(default_factory=dict)
    began: float = math.inf
    held: float = 0.0
    """GPU-seconds until ``since``."""
    since: float = 0.0

    def hold(self, now: float) -> None:
        """Count the GPUs that the job has held; before each change of them."""
        self.held, self.since = self.held + len(self.workers) * (now - self.since), now


def play(
    tasks: Sequence[Task], cluster: Cluster, policy: Policy, pause: float, delays: Delays = Delays()
) -> dict[str, Outcome]:
    """The outcome of each job, by name. ``pause``: seconds of a rescale."""
    return _Play(tasks, cluster, policy, pause, delays).run()


class _Play:
    def __init__(self, tasks: Sequence[Task], cluster: Cluster, policy: Policy, pause: float, delays: Delays) -> None:
        self._cluster, self._policy, self._pause, self._delays = cluster, policy, pause, delays
        self._nodes = tuple(Node(f"n{i:03}", {GPU: cluster.gpus, "pods": 110}) for i in range(cluster.nodes))
        self._jobs: dict[str, _Job] = {}
        self._ended: dict[str, Outcome] = {}
        self._tie = itertools.count()
        self._events: list[tuple[float, int, str, _Job | None, int]] = []
        """(time, order, what, job, generation that it is about)."""
        for task in tasks:
            self._after(task.arrives, "arrives", _Job(Training(task), since=task.arrives))
        self._decides = math.inf
        """When the next decision is due."""

    def run(self) -> dict[str, Outcome]:
        while self._events:
            now, _, what, job, generation = heapq.heappop(self._events)
            if what != "decides":
                assert job is not None
                if self._happens(now, what, job, generation):
                    self._due(now + (self._delays.admission if what == "arrives" else self._delays.decision))
            elif now >= self._decides:
                self._decides = math.inf
                self._decide(now)
        return self._ended

    # ---- events ------------------------------------------------------------------------------------------------------
    def _happens(self, now: float, what: str, job: _Job, generation: int) -> bool:
        """Whether a decision follows from it."""
        training = job.training
        name = training.task.name
        if what == "arrives":
            self._jobs[name] = job
            return True
        if what == "joins":
            joins = [n for n, (_, trains) in job.workers.items() if not trains and n < generation]
            if name not in self._jobs or not joins:
                return False
            job.workers |= {n: (job.workers[n][0], True) for n in joins}
            self._enter(now, job)
            return True
        if training.generations != generation or name not in self._jobs:
            return False  # it was about an earlier generation
        if what == "measured":
            key = sum(training.placement), len(training.placement)
            is_new = key not in job.measured
            job.measured[key] = float(f"{training.step:.4g}")
            for old in list(job.measured)[:-KEPT]:
                del job.measured[old]
            return is_new
        job.hold(now)
        self._ended[name] = Outcome(job.began, now, training.rescales, job.held)
        del self._jobs[name]
        return True

    def _enter(self, now: float, job: _Job) -> None:
        """A new generation, of all workers that are to train."""
        training = job.training
        training.enter(now, placed(node for node, trains in job.workers.values() if trains), self._pause)
        job.began = min(job.began, now)
        reads = math.ceil((training.settled - training.first_commit) / READ_SECONDS)
        self._after(training.first_commit + max(reads, 1) * READ_SECONDS, "measured", job)
        self._after(training.ends, "ends", job)

    def _after(self, at: float, what: str, job: _Job | None) -> None:
        generation = job.training.generations if job else 0
        heapq.heappush(self._events, (at, next(self._tie), what, job, generation))

    def _due(self, at: float) -> None:
        if at < self._decides:
            self._decides = at
            self._after(at, "decides", None)

    # ---- decisions ---------------------------------------------------------------------------------------------------
    def _decide(self, now: float) -> None:
        moment = START + timedelta(seconds=now)
        made = allocate(Snapshot(self._nodes, tuple(self._view(j) for j in self._jobs.values())), self._policy, moment)
        changed = [self._obeys(now, moment, job, share) for job, share in self._shares(made)]
        if any(changed):
            self._due(now + self._delays.decision)
        if made.again is not None:
            self._due(now + made.again)

    def _shares(self, made: Allocation) -> Iterator[tuple[_Job, Share]]:
        """Smaller sizes first, so that room is free."""
        found = [(job, made.shares[name]) for name, job in self._jobs.items()]
        return iter(sorted(found, key=lambda f: (f[1].size or 0) > len(f[0].workers)))

    def _obeys(self, now: float, moment: datetime, job: _Job, share: Share) -> bool:
        """Whether the job changes."""
        size = share.size or 0
        if size == len(job.workers):
            return False
        job.resized = moment
        job.hold(now)
        leavers = self._order(job, share)[: max(len(job.workers) - size, 0)]
        trained = any(job.workers.pop(n)[1] for n in leavers)
        if trained:
            self._enter(now, job)
        for _ in range(size - len(job.workers)):
            job.workers[job.next] = self._schedule(), False
            job.next += 1
        if not leavers:
            at = now + self._delays.start
            heapq.heappush(self._events, (at, next(self._tie), "joins", job, job.next))
        return True

    def _schedule(self) -> int:
        """The node of a new worker: the fullest one with room, as by ``MostAllocated``."""
        used = Counter(node for job in self._jobs.values() for node, _ in job.workers.values())
        return max((n for n in range(self._cluster.nodes) if used[n] < self._cluster.gpus), key=lambda n: (used[n], -n))

    def _order(self, job: _Job, share: Share | None = None) -> list[int]:
        """Workers in the order in which they leave."""
        beside = Counter(node for node, _ in job.workers.values())
        release = share.release if share else frozenset()
        name = job.training.task.name
        facts = [
            WorkerFacts(
                str(n), n, trains, trains, f"{name}-{n}" in release, started=trains, neighbours=beside[node]
            )
            for n, (node, trains) in job.workers.items()
        ]  # fmt: skip
        return [w.ordinal for w in leave_order(facts)]

    def _view(self, job: _Job) -> Job:
        """The job as the operator claims for it."""
        training = job.training
        name = training.task.name
        workers = [
            Worker(f"{name}-{n}", f"n{job.workers[n][0]:03}", KIND.demand, trains=job.workers[n][1])
            for n in reversed(self._order(job))
        ]
        return Job(
            uid=name, namespace="bench", name=name, min=1, cap=training.task.most, kind=KIND,
            created=(START + timedelta(seconds=training.task.arrives)).timestamp(), workers=tuple(workers),
            size=len(workers), trains=training.generations > 0, resized=job.resized, pause=training.pause,
            rescales=training.rescales,
            measured=tuple(Measured(*key, seconds) for key, seconds in job.measured.items()),
        )  # fmt: skip
