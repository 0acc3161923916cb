"""One loop per job: its behavior if watch, API server or etcd are late or wrong."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conditions import until
from elastrain.api.keys import JobKeys
from elastrain_operator.facts import Pod
from elastrain_operator.job import loop as loop_module
from elastrain_operator.job import plan
from elastrain_operator.kube.client import ApiError
from elastrain_operator.watch import parse
from loop_world import body, named, run
from operator_fixtures import NOW

pytestmark = pytest.mark.usefixtures("quick_loops")


def test_pods_are_created_once_if_the_watch_is_late():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        for _ in range(5):
            jobs.wake("uid")
            await asyncio.sleep(0.02)
        assert set(world.pods) == {"job-0", "job-1"}
        world.watched = [parse.pod(p, NOW) for p in world.pods.values()]
        jobs.wake("uid")
        await asyncio.sleep(0.02)
        assert set(world.pods) == {"job-0", "job-1"}

    run(scenario)


def test_a_pod_that_the_watch_never_showed_is_replaced_if_it_is_gone(monkeypatch):
    monkeypatch.setattr(loop_module, "UNSEEN", timedelta(seconds=0.05))

    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        await asyncio.sleep(0.1)
        jobs.wake("uid")
        await asyncio.sleep(0.05)
        assert set(world.pods) == {"job-0", "job-1"}, "both exist, so the loop does nothing"
        del world.pods["job-0"]
        await asyncio.sleep(0.1)
        jobs.wake("uid")
        await until(lambda: set(world.pods) == {"job-1", "job-2"}, "a replacement")

    run(scenario)


@pytest.mark.parametrize("fault", [ApiError("write", 503, "", "busy"), RuntimeError("a fault of ours")])
def test_pass_is_repeated_if_it_fails(fault):
    async def scenario(world, jobs):
        world.failures = [fault]
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods after the retry")

    run(scenario)


def test_pass_is_repeated_with_the_newer_version_if_the_job_has_changed_meanwhile(monkeypatch):
    monkeypatch.setattr(loop_module, "RETRY_DELAYS", (60.0,))

    async def scenario(world, jobs):
        world.failures = [ApiError("write", 409, "Conflict", "the object has been modified")]
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: not world.failures, "a refused status")
        assert not world.pods, "no action follows a failed status write"
        jobs.see(body(replicas=2), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")

    run(scenario)


def test_job_is_unchanged_during_an_outage_and_converges_afterwards_with_the_same_pods():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        world.watched = [parse.pod(p, NOW) for p in world.pods.values()]
        before = dict(world.pods)
        world.down = True
        jobs.see(body(replicas=1), lambda _: world.watched)
        for _ in range(10):
            jobs.wake("uid")
            await asyncio.sleep(0.03)
        assert world.pods == before
        world.down = False
        await until(lambda: len(world.pods) == 1, "the surplus one is gone")
        assert world.pods == {"job-0": before["job-0"]}

    run(scenario)


def test_newer_of_two_versions_counts():
    assert loop_module.newest("9", "10") == loop_module.newest("10", "9") == loop_module.newest(None, "10") == "10"
    assert loop_module.newest(None, None) is None


def test_a_poisoned_job_reports_the_fault_and_delays_no_other(monkeypatch):
    passes = []
    healthy = plan.plan

    def poisoned(spec, status, observed, *rest, **more):
        if observed.job.name != "poison":
            return healthy(spec, status, observed, *rest, **more)
        passes.append(observed)
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(plan, "plan", poisoned)
    monkeypatch.setattr(loop_module, "RETRY_DELAYS", (0.2, 60.0))

    async def scenario(world, jobs):
        jobs.see(named("poison"), lambda _: [])
        await until(lambda: world.statuses, "a status")
        for number in range(20):
            jobs.see(named(f"neighbour-{number}"), lambda _: [])
            jobs.wake("poison")
        await until(lambda: len(world.pods) == 40, "all pods of all others")
        await until(lambda: len(passes) == 2, "the second attempt")
        for _ in range(20):
            jobs.wake("poison")
            await asyncio.sleep(0.01)
        assert len(passes) == 2, "the third one is not due yet"
        told = [s["conditions"][0] for s in world.statuses if s["conditions"][0]["reason"] == "OperatorFault"]
        assert len(told) == 1, "the fault is reported once"
        assert "ZeroDivisionError: a fault of ours" in told[0]["message"]

    run(scenario)


def test_loop_continues_if_the_fault_cannot_be_reported(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a fault of ours")

    async def scenario(world, jobs):
        with monkeypatch.context() as patch:
            patch.setattr(plan, "plan", broken)
            patch.setattr(plan, "fault", broken)
            jobs.see(body(), lambda _: world.watched)
            await asyncio.sleep(0.1)
        await until(lambda: len(world.pods) == 2, "two pods when the fault is gone")

    run(scenario)


def test_invalid_spec_is_reported_and_can_be_corrected():
    async def scenario(world, jobs):
        jobs.see(body(maxReplicas=0), lambda _: world.watched)
        await until(lambda: world.statuses, "a status")
        condition = world.statuses[0]["conditions"][0]
        assert (condition["type"], condition["reason"]) == ("PodsReady", "SpecInvalid")
        assert "spec.maxReplicas" in condition["message"]
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")

    run(scenario)


def test_loop_ends_with_its_job():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        await jobs.forget("uid")
        assert len(jobs) == 0
        assert not [t for t in asyncio.all_tasks() if t.get_name() == "job ns/job"]

    run(scenario)


def test_job_of_the_same_name_is_another_job():
    async def scenario(world, jobs):
        first, second = body(), body()
        second["metadata"] = {**second["metadata"], "uid": "uid2"}
        jobs.see(first, lambda _: world.watched)
        jobs.see(second, lambda _: world.watched)
        assert len(jobs) == 2
        assert "uid2" in jobs

    run(scenario)


def test_reference_from_another_namespace_has_no_force():
    """Seven failed pods elsewhere that name a job's UID would end it."""

    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        assert not jobs.is_another(JobKeys("ns", "job", "uid"))
        assert jobs.is_another(JobKeys("elsewhere", "job", "uid"))
        assert jobs.is_another(JobKeys("ns", "forged", "uid"))
        forged = Pod("job-7", "forged", 7, NOW)
        jobs.pod_deleted(JobKeys("elsewhere", "job", "uid"), forged)
        assert not jobs._loops["uid"]._deleted_meanwhile, "it does not count"
        jobs.pod_deleted(JobKeys("ns", "job", "uid"), forged)
        assert jobs._loops["uid"]._deleted_meanwhile

    run(scenario)
