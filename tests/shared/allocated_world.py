"""A cluster that executes each allocation at once, and checks every promise of it. The messages of the assertions are
the promises."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import (
    Held,
    Job,
    Node,
    NodeRules,
    Policy,
    Share,
    Sharing,
    Snapshot,
    Worker,
    WorkerShape,
)

START = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def gpus(n: int) -> tuple[tuple[str, int], ...]:
    return ((GPU, n), ("pods", 1)) if n else (("pods", 1),)


def spec(
    least: int, more: int, per: int, pool: str, speeds: tuple = ((), None), *, each: int = 1, spares: int = 0, **fields
) -> Job:
    """``least``, ``more``, ``spares``: replicas of so many (``each``) workers."""
    fields["measured"], fields["batches"] = speeds
    place = NodeRules(selector=(("pool", pool),)) if pool else NodeRules()
    most, kind = (least + more) * each, WorkerShape(gpus(per), place)
    return Job("", min=least * each, cap=most, name="", kind=kind, group_size=each, spares=spares * each, **fields)


@dataclass
class Played:
    """A job of the played cluster."""

    spec: Job
    workers: dict[str, str] = field(default_factory=dict)
    """Name → node; empty: not bound."""
    groups: dict[str, int] = field(default_factory=dict)
    """Name → group; without groups of several workers each is one."""
    size: int = 0
    trains: bool = False
    resized: datetime | None = None
    births: int = 0
    spares: int = 0
    """Warm spares that it was given."""
    pending: int = 0
    """Workers that it keeps Pending for an autoscaler."""

    def replicas(self) -> list[list[str]]:
        """Workers by group, those of whole bound groups first."""
        found: dict[int, list[str]] = {}
        for name in self.workers:
            found.setdefault(self.groups[name], []).append(name)
        if self.spec.group_size == 1:
            return list(found.values())
        return sorted(found.values(), key=lambda names: not self.is_whole(names))

    def is_whole(self, replica: list[str]) -> bool:
        return len(replica) == self.spec.group_size and all(self.workers[name] for name in replica)


class World:
    """Simulates scheduler, kubelet and jobs."""

    def __init__(self, nodes: list[Node], policy: Policy, *, preempts: bool = False) -> None:
        """``preempts``: the scheduler evicts workers of lower priority for a Pending one."""
        self.now = START
        self.preempts = preempts
        self.nodes = {n.name: n for n in nodes}
        self.policy = policy
        self.jobs: dict[str, Played] = {}
        self.leaving: list[Held] = []
        self.numbers = itertools.count()

    # ---- what happens ------------------------------------------------------------------------------------------------
    def arrive(self, spec: Job) -> None:
        n = next(self.numbers)
        self.jobs[f"j{n}"] = Played(dataclasses.replace(spec, uid=f"j{n}", name=f"j{n}", created=float(n)))

    def end(self, which: int) -> None:
        if self.jobs:
            del self.jobs[sorted(self.jobs)[which % len(self.jobs)]]

    def lose_node(self, which: int) -> None:
        if not self.nodes:
            return
        gone = sorted(self.nodes)[which % len(self.nodes)]
        del self.nodes[gone]
        self.leaving = [held for held in self.leaving if held.node != gone]
        for job in self.jobs.values():
            job.workers = {name: node for name, node in job.workers.items() if node != gone}
            job.trains = job.trains and bool(job.workers)

    def cordon(self, which: int) -> None:
        if self.nodes:
            name = sorted(self.nodes)[which % len(self.nodes)]
            self.nodes[name] = dataclasses.replace(self.nodes[name], cordoned=not self.nodes[name].cordoned)

    def join_node(self, free: int) -> None:
        name = f"x{next(self.numbers)}"
        self.nodes[name] = Node(name, {GPU: free, "pods": 20}, labels={"pool": "p"})

    # ---- one round ---------------------------------------------------------------------------------------------------
    def snapshot(self) -> Snapshot:
        return Snapshot(
            tuple(self.nodes.values()), tuple(self._view(j) for j in self.jobs.values()), tuple(self.leaving)
        )

    def _view(self, job: Played) -> Job:
        demand, size, spares = job.spec.kind.demand, job.size, job.spec.spares > 0
        several = job.spec.group_size > 1
        names = [(n, job.is_whole(replica)) for replica in job.replicas() for n in replica]
        workers = tuple(
            Worker(
                n,
                job.workers[n],
                demand,
                trains=job.trains and whole and i < size,
                spare=spares and i >= size,
                group=str(job.groups[n]) if several else "",
            )
            for i, (n, whole) in enumerate(names)
        )
        least = min(j.spec.priority for j in self.jobs.values())
        evicts = self.preempts and job.spec.priority > least
        now = dataclasses.replace(job.spec, workers=workers, size=job.size, trains=job.trains, resized=job.resized)
        return dataclasses.replace(now, evicts=evicts)

    def round(self) -> bool:
        """Allocate and execute; returns whether anything has changed."""
        before = self._picture()
        seen = self.snapshot()
        made = allocate(seen, self.policy, self.now)
        self._check(seen, made.shares)
        self.leaving = []  # leaving workers have left
        for uid, share in made.shares.items():
            self._obey(self.jobs[uid], share)
        self._schedule()
        return self._picture() != before

    def _obey(self, job: Played, share: Share) -> None:
        assert share.size is not None
        if share.size != job.size:
            job.size, job.resized = share.size, self.now
        job.spares, job.pending = share.spares, share.pending
        replicas = job.replicas()
        replicas.sort(
            key=lambda names: (share.release.isdisjoint(names), job.is_whole(names), -int(names[0].split("-")[1]))
        )
        wanted = (job.size + job.spares + job.pending) // job.spec.group_size
        surplus = max(len(replicas) - wanted, 0)
        victims = replicas[:surplus] + [r for r in replicas[surplus:] if not share.replace.isdisjoint(r)]
        for name in itertools.chain(*victims):
            node = job.workers.pop(name)
            if node:
                self.leaving.append(Held(node, job.spec.kind.demand))
        left = [job.groups[replica[0]] for replica in job.replicas()]
        numbers = [*left, *(job.births + n for n in range(1, wanted - len(left) + 1))]
        for number in numbers:
            missing = job.spec.group_size - sum(job.groups[name] == number for name in job.workers)
            if share.places is not None:
                missing = min(missing, share.places - sum(name not in share.kept for name in job.workers))
            for _ in range(missing):
                job.births += 1
                name = f"{job.spec.name}-{job.births}"
                job.workers[name], job.groups[name] = "", number

    def _schedule(self) -> None:
        """Bind what fits, to the node with the most room: not where the allocator expected."""
        free = {name: Counter(node.room) for name, node in self.nodes.items()}
        for held in self.leaving:
            if held.node in free:
                free[held.node].subtract(dict(held.demand))
        for job in self.jobs.values():
            for node in job.workers.values():
                if node in free:
                    free[node].subtract(dict(job.spec.kind.demand))
        for job in self.jobs.values():
            pool = dict(job.spec.kind.place.selector)
            for name in [n for n, node in job.workers.items() if not node]:
                demand = dict(job.spec.kind.demand)
                fits = [
                    n for n, left in free.items()
                    if all(left[r] >= a for r, a in demand.items())
                    and not self.nodes[n].cordoned and pool.items() <= dict(self.nodes[n].labels).items()
                ]  # fmt: skip
                if fits:
                    chosen = max(fits, key=lambda n: (free[n][GPU], n))
                    job.workers[name] = chosen
                    free[chosen].subtract(demand)
                else:
                    lowest = min(j.spec.priority for j in self.jobs.values())
                    assert not self.preempts or job.spec.priority == lowest, "no worker is evicted for another job's"
            bound = sum(bool(node) for node in job.workers.values())
            whole = sum(len(replica) for replica in job.replicas() if job.is_whole(replica))
            job.trains = (job.trains and bound > 0) or whole >= job.spec.min

    def _picture(self) -> object:
        return [(uid, j.size, dict(j.workers), j.trains) for uid, j in sorted(self.jobs.items())], list(self.leaving)

    # ---- the promises ------------------------------------------------------------------------------------------------
    def _check(self, seen: Snapshot, shares: dict[str, Share]) -> None:
        total: Counter[str] = Counter()
        for node in seen.nodes:
            total.update(node.room)
        asked: Counter[str] = Counter()
        held: dict[str, int] = {}
        floors: dict[str, int] = {}
        for job in seen.jobs:
            share, bound = shares[job.uid], sum(1 for w in job.workers if w.node)
            assert share.size is not None
            assert share.size <= job.cap, "never more than maxReplicas, or replicas"
            assert share.size == 0 or share.size >= job.min, "no job holds accelerators below its minimum"
            groups: dict[str, list[Worker]] = {}
            for worker in job.workers:
                if worker.node:
                    groups.setdefault(worker.group or worker.name, []).append(worker)
            for mates in groups.values():
                assert len({w.name in share.release for w in mates}) == 1, "workers of a group leave together"
            for figure in (share.size, share.spares, share.pending):
                assert figure % job.group_size == 0, "only whole groups are granted"
            if job.trains:
                assert share.size >= job.min, "no training job is shrunk below its minimum"
                whole = [w for mates in groups.values() if len(mates) == job.group_size for w in mates]
                staying = {w.name for w in whole} - share.release
                assert len(staying) >= min(len(whole), job.min), "no training job loses a worker of its minimum"
                kept = [w for w in job.workers if w.trains and w.name not in share.release | share.replace]
                was = sum(w.trains for w in job.workers)
                assert len(kept) >= min(was, job.min), "at least the minimum continues to train if workers are replaced"
            assert share.spares <= (job.spares if job.trains else 0), (
                "only training jobs get spares, and at most the requested number"
            )
            if share.reason == "NoRoom" and share.size and not any(n.cordoned for n in seen.nodes):
                spares = sum(shares[o.uid].spares for o in seen.jobs if o.kind == job.kind)
                by_stride = self.policy.sharing is not Sharing.EQUAL  # a larger size may take several workers more
                assert by_stride or spares < job.group_size, "no spares take accelerators by which a job could grow"
            if not job.elastic and not (job.trains and share.size == job.min):
                assert share.reason not in ("ResizedRecently", "NotWorthIt"), "fixed replicas need not pay"
            assert share.pending < self.policy.pending + job.group_size, "few workers are Pending beyond the size"
            assert not share.awaiting or (self.policy.pending and not job.trains), "only a minimum awaits nodes"
            real = share.size if not job.trains or share.size > job.min else min(share.size, bound)
            real -= share.awaiting
            for resource, amount in job.kind.demand:
                asked[resource] += amount * (real + share.spares)
            per = dict(job.kind.demand).get(GPU, 0)
            held[job.namespace] = held.get(job.namespace, 0) + (real + share.spares) * per
            floors[job.namespace] = floors.get(job.namespace, 0) + (min(bound, job.min) * per if job.trains else 0)
        for resource, amount in asked.items():
            assert amount <= total[resource], "never more than the cluster has"
        for namespace, bounds in self.policy.quotas.items():
            most = max(bounds[GPU], floors.get(namespace, 0))
            assert held.get(namespace, 0) <= most, "a quota is exceeded only by minima that were there before it"

    def settle(self) -> None:
        """Run until nothing changes, and then for two more rounds of time."""
        for _ in range(30):
            self.now += timedelta(seconds=self.policy.hysteresis + 1)
            if not self.round() and not self.round():
                break
        else:
            raise AssertionError("the sharing comes to rest")
        for _ in range(2):
            self.now += timedelta(seconds=self.policy.hysteresis + 1)
            assert not self.round(), "a stable allocation does not flap"
