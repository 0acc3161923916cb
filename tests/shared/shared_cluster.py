"""A cluster that follows the allocator: jobs whose pods are bound, refused or unschedulable, second by second."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.promise import Promises
from elastrain_operator.allocation.snapshot import Job, Node, Obstacle, Policy, Share, Snapshot, Worker, WorkerShape

START = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
PER_NODE = 8


@dataclass
class Played:
    """A job that follows its shares; ``fault``: what becomes of its new pods."""

    spec: Job
    fault: str = ""
    """``refused``, ``unschedulable``, or empty: they are bound at once."""
    workers: dict[str, str] = field(default_factory=dict)
    trains: bool = False
    admitted: bool = False
    refused: datetime | None = None
    births: int = 0


class Cluster:
    """An allocation in each step, on nodes of eight devices. The scheduler spreads, as Kubernetes' default one does."""

    joined = 0
    step = 1
    """Seconds between two allocations."""

    def __init__(self, nodes: int = 1, hysteresis: float = 0.0, **policy: Any) -> None:
        self.now = START
        self.nodes: list[Node] = []
        for _ in range(nodes):
            self.add_node()
        self.policy = Policy(hysteresis=hysteresis, **policy)
        self.promises = Promises()
        self.jobs: dict[str, Played] = {}
        self.shares: dict[str, Share] = {}
        self.sizes: dict[str, list[int]] = {}

    def add_node(self) -> None:
        self.joined += 1
        self.nodes.append(Node(f"n{self.joined}", {GPU: PER_NODE, "pods": 100}))

    def remove_node(self, name: str) -> None:
        self.nodes = [n for n in self.nodes if n.name != name]

    def evict(self, name: str) -> None:
        """All workers of a node end."""
        for job in self.jobs.values():
            job.workers = {w: node for w, node in job.workers.items() if node != name}

    def held(self, node: str) -> int:
        """Devices of a node that workers hold."""
        return sum(n == node for job in self.jobs.values() for n in job.workers.values())

    def pending(self) -> int:
        """Workers for which no node has room."""
        return sum(not n for job in self.jobs.values() if not job.fault for n in job.workers.values())

    def arrive(self, name: str, least: int, most: int, fault: str = "", **fields: Any) -> Played:
        spec = Job(name, "ns", name, least, most, ONE, created=float(len(self.jobs)), **fields)
        self.jobs[name] = Played(spec, fault)
        return self.jobs[name]

    def bound(self, name: str) -> int:
        return sum(bool(node) for node in self.jobs[name].workers.values())

    def run(self, seconds: int) -> None:
        for _ in range(max(seconds // self.step, 1)):
            self.now += timedelta(seconds=self.step)
            views = tuple(self._view(name, job) for name, job in self.jobs.items())
            self.shares = dict(allocate(Snapshot(tuple(self.nodes), views), self.policy, self.now).shares)
            for name, share in self.shares.items():
                self._obey(self.jobs[name], share)
                self.sizes.setdefault(name, []).append(self.bound(name))

    def _view(self, name: str, job: Played) -> Job:
        given = self.shares.get(name)
        workers = tuple(Worker(w, node, ONE.demand, job.trains and bool(node)) for w, node in job.workers.items())
        waits = any(not node for node in job.workers.values())
        view = dataclasses.replace(
            job.spec, workers=workers, size=(given.size or 0) if given else 0, trains=job.trains,
            admitted=job.admitted and job.refused is None, refused=job.refused,
            hindered=waits and job.fault == "unschedulable",
        )  # fmt: skip
        obstacle = Obstacle(job.fault, "by this cluster", refused=job.fault == "refused") if job.fault else None
        return self.promises.follow(view, given, obstacle, self.now, fingerprint=len(self.nodes))

    def _obey(self, job: Played, share: Share) -> None:
        for name in [n for n in job.workers if n in share.release | share.replace]:
            del job.workers[name]
        while len(job.workers) > share.size + share.pending:
            unbound = [n for n, node in job.workers.items() if not node]
            del job.workers[(unbound or list(job.workers))[-1]]
        if share.probe or len(job.workers) < share.size:
            job.refused = self.now if job.fault == "refused" else None
            job.admitted = job.refused is None
        while len(job.workers) < share.size + share.pending and job.admitted:
            job.births += 1
            job.workers[f"{job.spec.name}-{job.births}"] = ""
        if job.fault != "unschedulable":
            self._bind(job)
        job.trains = (job.trains and self.bound(job.spec.name) > 0) or self.bound(job.spec.name) >= job.spec.min

    def _bind(self, job: Played) -> None:
        open_nodes = [n.name for n in self.nodes if not n.going and not n.cordoned]
        for name in [n for n, node in job.workers.items() if not node]:
            emptiest = min(open_nodes, key=self.held, default="")
            if emptiest and self.held(emptiest) < PER_NODE:
                job.workers[name] = emptiest
