"""Properties of every allocation: random clusters, and a simulated one that follows the allocator.

The messages of the assertions, here and in ``allocated_world``, are the promises.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocated_world import GPU, START, World, spec
from budgets import examples
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.granting import Granting
from elastrain_operator.allocation.snapshot import Job, Node, Policy, Sharing, Snapshot, Worker, WorkerShape
from elastrain_resource.sizing.speedup import Batches, Measured

QUOTAS = {"b": {GPU: 6}}
NODES = st.lists(
    st.builds(lambda free, pool: (free, pool), st.integers(0, 8), st.sampled_from(["p", "q"])),
    max_size=5,
).map(lambda raw: [Node(f"n{i}", {GPU: free, "pods": 20}, labels={"pool": pool}) for i, (free, pool) in enumerate(raw)])
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


SMALL = st.builds(  # workers of several sizes can be bound where others were to fit
    spec, st.integers(1, 3), st.integers(0, 3), st.just(1), st.just(""), spares=st.sampled_from([0, 1]),
    namespace=st.just("a"), elastic=st.booleans(), priority=st.sampled_from([0, 5]), each=st.sampled_from([1, 2]),
)  # fmt: skip


@examples(100)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=3),
    st.sampled_from([0, 2]),
    st.lists(SMALL, min_size=2, max_size=3),
    st.lists(st.tuples(st.sampled_from(["lose_node", "cordon", "end", "join_node"]), st.integers(0, 3)), max_size=6),
)
def test_the_scheduler_evicts_no_worker_for_a_pending_one_of_higher_priority(nodes, pending, specs, happenings):
    world = World(
        [Node(f"n{i}", {GPU: n, "pods": 20}) for i, n in enumerate(nodes)], Policy(pending=pending), preempts=True
    )
    for what, how in [*(("arrive", each) for each in specs), *happenings]:
        getattr(world, what)(how)
        world.round()
        world.round()


@examples(60)
@given(NODES, POLICIES, HAPPENINGS)
def test_an_undone_attempt_leaves_all_fields_as_they_were_but_its_cause(nodes, policy, happenings):
    attempt = Granting.attempt

    def checked(self, grant, take):
        before = {uid: g.copy() for uid, g in self._grants.items()}
        done = attempt(self, grant, take)
        for uid, known in self._grants.items() if not done else ():
            assert known == replace(before[uid], stop=known.stop), "an undone attempt leaves no trace"
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Granting, "attempt", checked)
        world = World(nodes, policy)
        for what, how in happenings:
            if what != "wait":
                getattr(world, what)(how)
            world.round()


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
    kind = WorkerShape((("cpu", 1000), (GPU, 1), ("pods", 1)))
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
