"""Properties of every allocation: random clusters, and a simulated one that follows the allocator.

The messages of the assertions are the promises.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.sizing.speedup import Batches, Measured
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.model import (
    Held,
    Job,
    Kind,
    Node,
    Place,
    Policy,
    Share,
    Sharing,
    Snapshot,
    Worker,
)

START = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
QUOTAS = {"b": {GPU: 6}}


def gpus(n: int) -> tuple[tuple[str, int], ...]:
    return ((GPU, n), ("pods", 1)) if n else (("pods", 1),)


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
    """Simulates scheduler, kubelet and jobs: executes each allocation at once, and checks every promise."""

    def __init__(self, nodes: list[Node], policy: Policy) -> None:
        self.now = START
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
        return dataclasses.replace(job.spec, workers=workers, size=job.size, trains=job.trains, resized=job.resized)

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
                others = [o for o in seen.jobs if o.kind == job.kind and shares[o.uid].spares]
                assert not others, "no spare takes an accelerator that a growing job needs"
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


NODES = st.lists(
    st.builds(lambda free, pool: (free, pool), st.integers(0, 8), st.sampled_from(["p", "q"])),
    max_size=5,
).map(lambda raw: [Node(f"n{i}", {GPU: free, "pods": 20}, labels={"pool": pool}) for i, (free, pool) in enumerate(raw)])


def spec(
    least: int, more: int, per: int, pool: str, speeds: tuple = ((), None), *, each: int = 1, spares: int = 0, **fields
) -> Job:
    """``least``, ``more``, ``spares``: replicas of so many (``each``) workers."""
    fields["measured"], fields["batches"] = speeds
    place = Place(selector=(("pool", pool),)) if pool else Place()
    most, kind = (least + more) * each, Kind(gpus(per), place)
    return Job("", min=least * each, cap=most, name="", kind=kind, group_size=each, spares=spares * each, **fields)


WELL = (Measured(1, 1, 1.0), Measured(4, 1, 0.25), Measured(8, 2, 0.15))
BADLY = (Measured(1, 1, 1.0), Measured(2, 1, 0.9), Measured(4, 1, 0.9))
FREE = (Measured(1, 1, 1.0, 64), Measured(1, 1, 1.5, 128), Measured(4, 1, 0.8, 256))
SPEEDS = [((), None), (WELL[:1], None), (WELL, None), (BADLY, None), (FREE, Batches(64, 4096, 900.0, micro=64))]
SPEEDS += [(FREE[:1], Batches(64, 256))]
SPECS = st.builds(
    spec,
    st.integers(1, 3),
    st.integers(0, 6),
    st.sampled_from([0, 1, 1, 2, 4]),
    st.sampled_from(["", "", "p", "q"]),
    st.sampled_from(SPEEDS),
    namespace=st.sampled_from(["a", "b", "c"]),
    elastic=st.sampled_from([True, True, False]),
    priority=st.sampled_from([0, 0, 5]),
    pause=st.sampled_from([None, 0.3, 60.0]),
    spares=st.sampled_from([0, 0, 1, 2]),
    each=st.sampled_from([1, 1, 2, 3]),
)
POLICIES = st.builds(
    lambda weights, hysteresis, pending, sharing: Policy(QUOTAS, weights, hysteresis, pending=pending, sharing=sharing),
    st.sampled_from([{}, {"a": 3}]),
    st.sampled_from([0.0, 60.0]),
    st.sampled_from([0, 0, 2]),
    st.sampled_from([Sharing.EQUAL, *Sharing]),
)
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), SPECS),
        st.tuples(st.sampled_from(["end", "lose_node", "cordon"]), st.integers(0, 9)),
        st.tuples(st.just("join_node"), st.integers(0, 8)),
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 100])),
    ),
    max_size=20,
)


@examples(150)
@given(NODES, POLICIES, HAPPENINGS)
def test_promises_are_kept_and_the_cluster_comes_to_rest_for_any_history(nodes, policy, happenings):
    world = World(nodes, policy)
    for what, how in happenings:
        if what == "wait":
            world.now += timedelta(seconds=how)
        else:
            getattr(world, what)(how)
        world.round()
    world.settle()


@examples(60)
@given(NODES, POLICIES, st.lists(SPECS, max_size=6), st.randoms(use_true_random=False))
def test_answer_does_not_depend_on_the_order_of_the_input(nodes, policy, specs, random):
    world = World(nodes, policy)
    for wanted in specs:
        world.arrive(wanted)
    world.round()
    seen = world.snapshot()
    jobs, shuffled = list(seen.jobs), list(seen.nodes)
    random.shuffle(jobs)
    random.shuffle(shuffled)
    again = Snapshot(tuple(shuffled), tuple(jobs), seen.leaving)
    first, second = allocate(seen, policy, world.now), allocate(again, policy, world.now)
    assert first.shares == second.shares, "the same cluster gets the same answer"


@examples(60)
@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 12), st.sampled_from(["a", "c"])), min_size=1, max_size=6),
    st.sampled_from([{}, {"a": 2}]),
    st.lists(st.integers(0, 9), max_size=3),
)
def test_shares_are_max_min_fair_up_to_one_worker(slots, wanted, weights, ended):
    """One kind of worker, one priority: shares are max-min fair up to one worker."""
    world = World([Node("n", {GPU: slots, "pods": 100})], Policy(weights=weights))
    for least, more, namespace in wanted:
        world.arrive(spec(least, more, 1, "", namespace=namespace))
    world.settle()
    for which in ended:  # so that shares are reached from others, too
        world.end(which)
        world.settle()
    jobs = [j for j in world.jobs.values() if j.size]
    above = {j.spec.uid: j.size - j.spec.min for j in jobs}
    for one, other in itertools.permutations(jobs, 2):
        if one.size < one.spec.cap and one.spec.namespace == other.spec.namespace:
            assert above[other.spec.uid] <= above[one.spec.uid] + 1, "jobs of one namespace share evenly"
    by_namespace = Counter()
    for j in jobs:
        by_namespace[j.spec.namespace] += above[j.spec.uid]
    hungry = {j.spec.namespace for j in jobs if j.size < j.spec.cap}
    for namespace in hungry:
        for other, has in by_namespace.items():
            if other != namespace:
                fair = (has - 1) / weights.get(other, 1) <= by_namespace[namespace] / weights.get(namespace, 1)
                assert fair, "namespaces share by their weights"
    assert not hungry or sum(j.size for j in jobs) == slots, "no usable accelerator is left idle"


@examples(60)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 2)), max_size=5))
def test_no_job_holds_more_than_its_minimum_while_a_higher_priority_needs_more(slots, wanted):
    world = World([Node("n", {GPU: slots, "pods": 100})], Policy())
    for least, more, priority in wanted:
        world.arrive(spec(least, more, 1, "", namespace="a", priority=priority))
    world.settle()
    let_in = [j for j in world.jobs.values() if j.size]
    for low, high in itertools.product(let_in, let_in):
        if low.spec.priority < high.spec.priority and high.size < high.spec.cap:
            assert low.size == low.spec.min, "the higher priority gets everything above the minima"


def crowd(jobs: int, settled: bool) -> Snapshot:
    """Jobs of four workers with a cap of eight, on nodes with eight GPUs; settled: they fill the cluster."""
    kind = Kind((("cpu", 1000), (GPU, 1), ("pods", 1)))
    nodes = tuple(Node(f"n{i:05}", {"cpu": 64000, GPU: 8, "pods": 110}) for i in range(jobs // 2))
    made = []
    for i in range(jobs):
        workers = tuple(Worker(f"j{i}-{k}", f"n{i // 2:05}", kind.demand, trains=True) for k in range(4))
        made.append(
            Job(
                uid=f"j{i}", namespace=f"ns{i % 20}", name=f"j{i}", min=1, cap=8, kind=kind, created=float(i),
                workers=workers if settled else (), size=4 if settled else 0, trains=settled,
            )
        )  # fmt: skip
    return Snapshot(nodes, tuple(made))


@pytest.mark.parametrize("sharing", [Sharing.EQUAL, Sharing.EFFICIENT])
@pytest.mark.parametrize("settled", [False, True])
def test_cost_grows_no_faster_than_the_cluster(settled, sharing):
    few, many = (allocate(crowd(n, settled), Policy(sharing=sharing), START).looks for n in (300, 3000))
    assert many <= 10.5 * few, "ten times the jobs and nodes are at most about ten times the steps"
    assert many <= 20 * 3000


def test_the_example_of_the_documentation_is_true():
    """docs/capacity.md"""
    world = World([Node(f"n{i}", {GPU: 4, "pods": 20}) for i in range(2)], Policy())

    def settled() -> list[int]:
        world.settle()
        return [job.size for job in world.jobs.values()]

    world.arrive(spec(2, 6, 1, "", namespace="team"))
    assert settled() == [8]
    world.arrive(spec(1, 7, 1, "", namespace="team"))
    assert settled() == [5, 3]
    world.arrive(spec(2, 1, 1, "", namespace="team", elastic=False, priority=10))
    assert settled() == [3, 2, 3]
    a, b, c = world.jobs.values()
    for job, lost in ((a, 2), (b, 1), (c, 1)):  # one of each stays on n1, two of c
        names = sorted(job.workers)
        job.workers = {n: "n0" if i < lost else "n1" for i, n in enumerate(names)}
    world.lose_node(0)
    assert settled() == [2, 1, 2]
    assert sum(bool(node) for node in a.workers.values()) == 1, "it waits for one more"
