"""What one job may cost the others: work follows what exists, never a number of a spec, and a failure is set aside."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_operator.allocation.allocate import SIGNALS, allocate
from elastrain_operator.allocation.snapshot import Job, Node, Policy, Sharing, Snapshot, Worker, WorkerShape
from elastrain_operator.cluster import faults
from elastrain_operator.policy.size import replicas
from elastrain_resource.sizing.speedup import Batches, Measured
from shared_cluster import Cluster

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
NODES = tuple(Node(f"n{i}", {GPU: 8, "pods": 110}) for i in range(3))
HUGE = st.sampled_from([1, 2, 7, 24, 25, 20_000, 2**31 - 1])
MEASURED = st.lists(
    st.builds(Measured, HUGE, st.sampled_from([1, 2, 2**31 - 1]), st.floats(0.01, 1e6), st.none()), max_size=3
)


@examples(150)
@given(st.lists(st.tuples(HUGE, HUGE, HUGE, MEASURED, st.booleans()), max_size=4), st.sampled_from([*Sharing]), HUGE)
def test_an_allocation_costs_what_the_cluster_has_whatever_sizes_the_specs_name(wanted, sharing, pending):
    jobs = []
    for n, (least, more, each, measured, trains) in enumerate(wanted):
        each = each if least <= 2 else 1
        workers = (Worker(f"j{n}", f"n{n % 3}", ONE.demand, trains=True),) if trains and each == 1 else ()
        made = Job(
            f"j{n}", "ns", f"j{n}", least * each, max(least, more) * each, ONE, workers=workers, trains=bool(workers),
            size=least * each if workers else 0, group_size=each, spares=more, measured=tuple(measured),
            batches=Batches(64, 2**31 - 1, 1e3) if more % 2 else None, created=float(n),
        )  # fmt: skip
        jobs.append(made)
    made = allocate(Snapshot(NODES, tuple(jobs)), Policy(sharing=sharing, pending=pending), NOW)
    assert made.looks < 20_000, "nodes examined follow the nodes and the workers that fit"
    for share in made.shares.values():
        assert share.pending + share.awaiting <= SIGNALS, "signals to an autoscaler are bounded"


def test_a_minimum_that_no_cluster_has_is_signalled_by_a_bounded_number_of_pods():
    cluster = Cluster(3, pending=1)
    cluster.arrive("a", 20_000, 20_000)
    cluster.run(30)
    assert cluster.bound("a") == 24
    assert cluster.pending() == SIGNALS, "they show an autoscaler what is missing first"
    assert cluster.shares["a"].reason == "AwaitsNodes"
    for _ in range(20):
        cluster.add_node()
    cluster.run(5)
    assert cluster.bound("a") == 23 * 8, "new nodes are used, and more is asked for"
    assert cluster.pending() == SIGNALS


def test_no_part_of_a_group_is_a_signal():
    job = Job("a", "ns", "a", 300, 300, ONE, group_size=150)
    share = allocate(Snapshot(NODES, (job,)), Policy(pending=1), NOW).shares["a"]
    assert (share.size, share.awaiting) == (0, 0), "a group has more workers than may be Pending"
    small = replace(job, min=80, cap=80, group_size=40)
    share = allocate(Snapshot(NODES, (small,)), Policy(pending=1), NOW).shares["a"]
    assert (share.size, share.awaiting) == (80, 56)


def test_places_of_new_workers_are_made_one_by_one_however_large_a_group_is():
    made = replicas.slots((), (), 2**31 - 1, 2**31 - 1)
    assert len(made) == replicas.BATCH


# ---- failures --------------------------------------------------------------------------------------------------------
def jobs_of(count: int) -> tuple[Job, ...]:
    return tuple(Job(f"j{n}", "ns", f"j{n}", 1, 4, ONE, created=float(n)) for n in range(count))


def fails_with(*bad: str):
    """An allocator that cannot bear some jobs."""

    def run(snapshot: Snapshot, policy: Policy, now: datetime):
        found = [j.uid for j in snapshot.jobs if j.uid in bad]
        if found:
            raise OverflowError(f"no number for {found[0]}")
        return allocate(snapshot, policy, now)

    return run


@examples(100)
@given(st.sets(st.integers(0, 11), max_size=faults.MOST), st.integers(1, 12))
def test_each_job_with_which_the_allocator_fails_is_named_and_all_others_get_their_shares(bad, count):
    names = tuple(f"j{n}" for n in bad)
    snapshot = Snapshot(NODES, jobs_of(count))
    shared = faults.share_out(fails_with(*names), snapshot, Policy(), NOW, {})
    existing = {j.uid for j in snapshot.jobs}
    assert shared.faults.keys() == set(names) & existing, "no job is blamed for another's fault"
    assert shared.made.shares.keys() == existing
    without = Snapshot(NODES, tuple(j for j in snapshot.jobs if j.uid not in names))
    expected = allocate(without, Policy(), NOW).shares
    assert {uid: s for uid, s in shared.made.shares.items() if uid in expected} == expected
    for uid in shared.faults:
        assert shared.made.shares[uid].reason == "OperatorFault"
        assert f"OverflowError: no number for {uid}" in shared.made.shares[uid].message


def test_a_job_that_is_set_aside_keeps_its_size_and_its_room():
    worker = Worker("j0-0", "n0", ONE.demand, trains=True)
    first, second = jobs_of(2)
    first = replace(first, workers=(worker,), size=1, trains=True)
    one = Snapshot((Node("n0", {GPU: 2, "pods": 9}),), (first, second))
    shared = faults.share_out(fails_with("j0"), one, Policy(), NOW, {})
    assert (shared.made.shares["j0"].size, shared.made.shares["j1"].size) == (1, 1)


def test_a_known_fault_costs_one_allocation():
    runs = []

    def counted(snapshot: Snapshot, policy: Policy, now: datetime):
        runs.append(len(snapshot.jobs))
        return allocate(snapshot, policy, now)

    faults.share_out(counted, Snapshot(NODES, jobs_of(9)), Policy(), NOW, {"j3": "a fault"})
    assert runs == [8]


def test_a_failure_without_any_job_is_no_jobs_fault():
    def broken(*_):
        raise RuntimeError("of ours")

    with pytest.raises(RuntimeError, match="of ours"):
        faults.share_out(broken, Snapshot(NODES, jobs_of(3)), Policy(), NOW, {})
