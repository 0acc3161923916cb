"""The shell around the allocator: claims in, shares out; its behavior while the cluster is unknown."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from conditions import until
from elastrain_operator.allocation.snapshot import Claims, Held, Job, Node, Policy, Share, WorkerShape
from elastrain_operator.cluster import capacity as capacity_module
from elastrain_operator.cluster.capacity import Capacity
from elastrain_operator.facts import JobRef, Observed, Pod
from elastrain_operator.policy.size import sizes
from elastrain_resource.job import Condition
from elastrain_resource.sizing.speedup import Measured

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = ((GPU, 1), ("pods", 1))


class Cluster:
    def __init__(self, *free: int) -> None:
        self.problem: str | None = None
        self.denied = self.looks = False
        self.free = free

    def nodes(self, now):
        return tuple(Node(f"n{i}", {GPU: n, "pods": 99}) for i, n in enumerate(self.free))

    def next_change(self, now):
        return None

    def quotas(self, namespace):
        return ()

    def priority(self, name):
        return {"high": 9, "patient": 9}.get(name, 0)

    def preempts(self, name):
        return name != "patient"


def wants(uid: str, least: int = 1, most: int = 4, **fields) -> Claims:
    return Claims(Job(uid, "ns", uid, least, most, WorkerShape(ONE), **fields))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(capacity_module, "COALESCE", 0.001)
    monkeypatch.setattr(capacity_module, "REST", 0.001)


def run(cluster: Cluster, scenario) -> None:
    """Run ``scenario(capacity, told)`` beside the allocations; ``told``: UIDs of jobs whose share has changed."""

    async def main():
        told: list[str] = []
        shared = Capacity(Policy(hysteresis=0), told.append)
        task = asyncio.create_task(shared.run(cluster))
        try:
            await asyncio.wait_for(scenario(shared, told), 20)
        finally:
            task.cancel()

    asyncio.run(main())


# ---- sharing ---------------------------------------------------------------------------------------------------------
def test_jobs_get_their_shares_once_for_each_change():
    async def scenario(shared, told):
        assert shared.share_of("a").size is None
        shared.claim("a", wants("a"))
        await until(lambda: shared.share_of("a").size == 4, "all that it may have")
        shared.claim("a", wants("a", size=4))
        shared.claim("b", wants("b", 2, created=1.0))
        await until(lambda: shared.share_of("b").size == 4, "its share")
        assert told.count("a") == 1

    run(Cluster(8), scenario)


@pytest.mark.parametrize(("name", "evicts"), [("high", True), ("patient", False), ("", False)])
def test_a_job_evicts_if_its_class_preempts_and_a_job_of_lower_priority_exists(monkeypatch, name, evicts):
    seen: list[dict[str, bool]] = []
    real = capacity_module.allocate
    monkeypatch.setattr(
        capacity_module, "allocate", lambda s, p, n: seen.append({j.uid: j.evicts for j in s.jobs}) or real(s, p, n)
    )

    async def scenario(shared, told):
        shared.claim("a", replace(wants("a"), priority_class=name))
        await until(lambda: seen == [{"a": False}], "alone it evicts none")
        shared.pod_seen("queued", Pod("x", "x", 0, NOW, node="n0", demand=ONE), "x")  # a job of Kueue's
        await until(lambda: seen[-1] == {"a": evicts}, "beside a pod of another job")
        shared.pod_seen("queued", None, "x")
        shared.claim("b", wants("b"))
        await until(lambda: seen[-1] == {"a": evicts, "b": False}, "beside another job")

    run(Cluster(8), scenario)


def test_progress_alone_causes_no_allocation():
    early, late = wants("a", remaining=100.0), wants("a", remaining=90.0)
    assert early.differs(None)
    assert not late.differs(early)
    assert wants("a", 2).differs(early)


def test_a_measured_size_causes_an_allocation():
    assert wants("a", measured=(Measured(2, 1, 0.5),)).differs(wants("a"))


def test_the_allocator_sees_what_a_job_has_measured_and_its_priority(monkeypatch):
    seen: list[Job] = []
    real = capacity_module.allocate
    monkeypatch.setattr(capacity_module, "allocate", lambda s, p, n: seen.extend(s.jobs) or real(s, p, n))

    async def scenario(shared, told):
        known = (Measured(2, 1, 1.0), Measured(4, 1, 0.6))
        shared.claim("a", replace(wants("a", size=2, measured=known), priority_class="high"))
        await until(lambda: seen, "a sharing")
        assert (seen[-1].measured, seen[-1].priority) == (known, 9)

    run(Cluster(8), scenario)


def test_leaving_workers_and_workers_without_claims_hold_their_room():
    async def scenario(shared, told):
        shared.pod_seen("gone", Pod("gone-0", "u0", 0, NOW, node="n0", demand=ONE), "u0")
        shared.claim("old", Claims(None, leaving=(Held("n0", ONE),)))
        shared.claim("a", wants("a"))
        await until(lambda: shared.share_of("a").size == 2, "what is left")
        shared.pod_seen("gone", None, "u0")
        await until(lambda: shared.share_of("a").size == 3, "the room of the worker without a claim")
        shared.forget("old")
        await until(lambda: shared.share_of("a").size == 4, "all of it")

    run(Cluster(4), scenario)


def test_a_suspended_job_is_admitted_again():
    async def scenario(shared, told):
        shared.claim("a", wants("a"))
        await until(lambda: shared.share_of("a").size == 4, "its share")
        shared.claim("a", Claims(None))
        assert shared.share_of("a").size is None

    run(Cluster(4), scenario)


def test_few_jobs_get_new_explanations_at_a_time(monkeypatch):
    monkeypatch.setattr(capacity_module, "NEW_EXPLANATIONS", 1)
    cluster = Cluster(8)
    bulky = WorkerShape(((GPU, 16), ("pods", 1)))

    async def scenario(shared, told):
        for uid in ("a", "b", "c"):
            shared.claim(uid, Claims(Job(uid, "ns", uid, 1, 1, bulky)))
        await until(lambda: len(told) == 3, "three are told that they wait")
        cluster.free = (9,)
        shared.nudge()
        await until(lambda: len(told) == 4, "one gets the new numbers")
        assert [uid for uid in ("a", "b", "c") if "9 " in shared.share_of(uid).message] == ["a"]
        for free in (10, 11, 12):
            cluster.free = (free,)
            shared.nudge()
            await until(lambda count=free - 5: len(told) == count, "another one")
        assert [told[n] for n in (4, 5, 6)] == ["b", "c", "a"], "each in its turn"

    run(cluster, scenario)


def test_allocations_continue_after_a_failure(monkeypatch):
    faults, logged = [RuntimeError("a fault of ours")] * 3, []  # also without any job
    real = capacity_module.allocate
    monkeypatch.setattr(capacity_module, "allocate", lambda *a: _raise(faults.pop()) if faults else real(*a))
    monkeypatch.setattr(capacity_module.log, "exception", logged.append, raising=False)

    async def scenario(shared, told):
        shared.claim("a", wants("a"))
        await until(lambda: logged, "the fault is told")
        assert shared.health().endswith("RuntimeError: a fault of ours")
        assert not shared.is_failing, "it may pass"
        monkeypatch.setattr(capacity_module, "FAILING", timedelta(0))
        assert shared.is_failing, "the health endpoint says so if it does not"
        shared.nudge()
        await until(lambda: shared.share_of("a").size == 4, "its share all the same")
        assert (shared.health(), shared.is_failing) == ("current", False)

    run(Cluster(4), scenario)


def test_a_job_with_which_the_allocation_fails_is_set_aside_until_its_spec_changes(monkeypatch):
    runs = []

    def fails(snapshot, *rest):
        runs.append(len(snapshot.jobs))
        if any(j.uid == "bad" and j.generation == 1 for j in snapshot.jobs):
            raise OverflowError("too large")
        return real(snapshot, *rest)

    real = capacity_module.allocate
    monkeypatch.setattr(capacity_module, "allocate", fails)

    async def scenario(shared, told):
        shared.claim("bad", wants("bad", generation=1))
        shared.claim("a", wants("a", created=1.0))
        await until(lambda: shared.share_of("a").size == 4, "the other gets all")
        share = shared.share_of("bad")
        assert (share.size, share.reason) == (0, "OperatorFault")
        assert "OverflowError: too large" in share.message
        assert (shared.health(), shared.is_failing) == ("jobs set aside: ns/bad", False)
        before = len(runs)
        shared.nudge()
        await until(lambda: len(runs) > before, "another pass")
        assert runs[-1] == 1, "one allocation, without the job"
        shared.claim("bad", wants("bad", generation=2, created=2.0))
        await until(lambda: shared.share_of("bad").reason != "OperatorFault", "it is tried again")
        assert shared.health() == "current"

    run(Cluster(4), scenario)


def _raise(error: Exception) -> None:
    raise error


# ---- what is not known -----------------------------------------------------------------------------------------------
def test_jobs_keep_their_size_until_the_cluster_is_known():
    cluster = Cluster(4)
    cluster.problem = "the nodes of the cluster are not listed yet"

    async def scenario(shared, told):
        shared.claim("a", wants("a"))
        await until(lambda: told, "it is told why")
        share = shared.share_of("a")
        assert (share.size, share.reason, share.blind) == (None, "CapacityUnknown", False)
        assert share.message.startswith("the cluster is unknown: the nodes of the cluster are not listed yet")
        cluster.problem = None
        shared.nudge()
        await until(lambda: shared.share_of("a").size == 4, "its share")
        assert not shared.share_of("new").is_answer, "a job that comes later is not told of the past"

    run(cluster, scenario)


def test_jobs_are_not_told_of_an_unknown_cluster_while_a_new_operator_looks():
    """Else each restart of the operator would write the status of each job twice."""
    cluster = Cluster(4)
    cluster.problem, cluster.looks = "the nodes of the cluster are not listed yet", True

    async def scenario(shared, told):
        shared.claim("a", wants("a"))
        await until(lambda: "not listed" in shared.share_of("a").message, "the first attempt")
        assert not shared.share_of("a").is_answer
        cluster.looks = False
        cluster.problem = "no route to host"
        shared.nudge()
        await until(lambda: shared.share_of("a").is_answer, "a failed look is said")

    run(cluster, scenario)


def test_report_of_a_changed_spec_waits_for_the_allocators_answer():
    """Else it is a write of the status of its own."""
    told = Condition(type="Grown", status="True", reason="AtMax", message="3", last_transition_time=NOW.isoformat())
    former = Share(3, "AtMax", "3 workers: all of replicas", generation=1)
    assert sizes.grown([told], False, former, 3, 4, answered=False) is None
    seen = Observed(JobRef("ns", "job", "uid", 2), share=former)
    assert sizes.unanswered_since(None, seen, NOW) == NOW
    assert sizes.unanswered_since(NOW, seen, NOW + sizes.ANSWER) == NOW, "it waits from the first time on"
    assert sizes.unanswered_since(NOW, replace(seen, share=replace(former, generation=2)), NOW) is None
    assert sizes.unanswered_since(NOW, replace(seen, share=None), NOW) is None


def test_an_answer_names_the_spec_that_it_is_for():
    async def scenario(shared, told):
        shared.claim("a", wants("a", generation=7))
        await until(lambda: shared.share_of("a").generation == 7, "an answer")

    run(Cluster(4), scenario)


def test_new_jobs_start_with_their_minimum_if_a_permission_is_missing():
    cluster = Cluster(4)
    cluster.problem, cluster.denied = "nodes is forbidden", True

    async def scenario(shared, told):
        shared.claim("a", wants("a"))
        await until(lambda: told, "it is told why")
        share = shared.share_of("a")
        assert (share.size, share.reason, share.blind) == (None, "CapacityUnknown", True)
        assert "nodes is forbidden; meanwhile running jobs keep their size, new ones start with minReplicas" in (
            share.message
        )

    run(cluster, scenario)


# ---- the rest between two allocations --------------------------------------------------------------------------------
def test_allocations_use_at_most_a_fifth_of_a_core(monkeypatch):
    monkeypatch.setattr(capacity_module, "REST", 0.3)
    assert capacity_module.rest(0.0) == capacity_module.rest(0.02) == 0.3
    assert capacity_module.rest(0.3) == pytest.approx(1.5)


def test_time_in_which_the_thread_does_not_run_costs_no_rest():
    """As on a machine whose cores are busy with other work."""
    _, waiting = capacity_module.timed(time.sleep, 0.1)
    assert waiting < 0.05
    _, working = capacity_module.timed(sum, range(1_000_000))
    assert working > 0.001


def test_a_new_operator_lets_the_reported_growth_stand_until_it_has_looked_at_the_cluster():
    """Else each restart of the operator would write the status of each job twice."""
    told = Condition(
        type="Grown", status="False", reason="NoRoom", message="3 of 4", last_transition_time=NOW.isoformat()
    )
    first = Capacity(Policy(), lambda uid: None).share_of("a")
    assert sizes.grown([told], False, first, 3, 4) is None
    assert sizes.grown([], False, first, 3, 4).reason == "CapacityUnknown"
    failed = replace(first, is_answer=True)
    assert sizes.grown([told], False, failed, 3, 4).reason == "CapacityUnknown", "a failed look is said"
