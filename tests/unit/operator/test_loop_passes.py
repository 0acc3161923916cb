"""When a job's loop makes a pass, and when a change may wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from conditions import until
from elastrain_operator import clock
from elastrain_operator.facts import Trouble
from elastrain_operator.job import loop as loop_module
from elastrain_operator.job.loops import STATUS_SHARE
from elastrain_operator.watch import parse
from loop_world import JOB, World, body, run
from operator_fixtures import NOW

pytestmark = pytest.mark.usefixtures("quick_loops")


class Counting(World):
    """Counts passes: each looks at the records once."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def of(self, keys):
        self.passes += 1
        return super().of(keys)


def run_counting(scenario) -> None:
    """Run ``scenario(world, jobs)`` after both workers of a job were created and the loop is idle."""

    async def at_rest(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        await until(lambda: world.passes == 2, "a look at what was created")
        assert jobs.unplanned == 0
        await scenario(world, jobs)

    run(at_rest, Counting())


def test_the_echo_of_an_own_status_causes_no_pass():
    async def scenario(world, jobs):
        before = world.passes
        echo = body()
        echo["metadata"] |= {"resourceVersion": "7", "managedFields": [{"manager": "elastrain"}]}
        echo["status"] = {"phase": "Pending"}
        jobs.see(echo, lambda _: world.watched)
        await asyncio.sleep(0.05)
        assert world.passes == before
        annotated = {**echo, "metadata": {**echo["metadata"], "annotations": {"who": "a user"}}}
        jobs.see(annotated, lambda _: world.watched)
        await until(lambda: world.passes > before, "a pass for what a user wrote")

    run_counting(scenario)


def test_an_unchanged_new_pod_causes_no_pass():
    async def scenario(world, jobs):
        before = world.passes
        for pod in world.pods.values():
            jobs.pod_seen(JOB, parse.pod(pod, NOW))
        await asyncio.sleep(0.05)
        assert world.passes == before
        running = parse.pod({**world.pods["job-0"], "status": {"phase": "Succeeded"}}, NOW)
        jobs.pod_seen(JOB, running)
        await until(lambda: world.passes > before, "a pass for a pod that has changed")

    run_counting(scenario)


def test_a_failed_write_beside_the_pods_gets_a_pass_of_its_own():
    async def scenario(world, jobs):
        (loop,) = jobs._loops.values()
        loop._state.retries["disruption budget"] = clock.now() + timedelta(seconds=0.2)
        loop.wake()
        before = world.passes
        await until(lambda: world.passes == before + 2, "the pass that was woken, and the one for the write")
        await asyncio.sleep(0.1)
        assert world.passes == before + 2, "a time that is over asks for none"

    run_counting(scenario)


def test_concurrent_changes_cause_one_pass(monkeypatch):
    monkeypatch.setattr(loop_module, "PACE", 0.1)

    async def scenario(world, jobs):
        await asyncio.sleep(0.15)
        before = world.passes
        for _ in range(20):
            jobs.wake("uid")
            await asyncio.sleep(0)
        await asyncio.sleep(0.25)
        assert before < world.passes <= before + 2

    run_counting(scenario)


@pytest.mark.parametrize(("took", "apart"), [(0.0, 0.2), (0.1, 0.2), (0.3, 0.6), (25.0, 1.0)])
def test_a_job_pauses_for_as_long_as_a_pass_took_within_bounds(monkeypatch, took, apart):
    monkeypatch.setattr(loop_module, "PACE", 0.2)
    assert loop_module.pace(took) == pytest.approx(apart)


def test_expected_changes_of_a_start_wait_and_trouble_does_not(monkeypatch):
    async def scenario(world, jobs):
        before, pods = world.passes, [parse.pod(p, NOW) for p in world.pods.values()]
        monkeypatch.setattr(loop_module, "ROUTINE", 60.0)
        for pod in pods:
            jobs.pod_seen(JOB, replace(pod, node="node-1", bound=pod.seen))
            jobs.pod_seen(JOB, replace(pod, node="node-1", bound=pod.seen, started=True))
        await asyncio.sleep(0.05)
        assert world.passes == before, "its members' records say when it trains"
        jobs.pod_seen(JOB, replace(pods[0], trouble=Trouble("Unschedulable", "no node")))
        await until(lambda: world.passes > before, "a pass for the trouble")
        assert jobs._loops["uid"]._later is None, "the waiting change was handled with it"

    run_counting(scenario)


def test_waiting_changes_are_handled_at_the_earliest_of_their_times(monkeypatch):
    monkeypatch.setattr(loop_module, "STATUS_INTERVAL", 60.0)

    async def scenario(world, jobs):
        before = world.passes
        jobs.wake_later("uid")
        [pod, _] = (parse.pod(p, NOW) for p in world.pods.values())
        jobs.pod_seen(JOB, replace(pod, node="node-1"))
        await until(lambda: world.passes > before, "a pass long before the next status")

    run_counting(scenario)


def test_steps_are_handled_when_the_next_status_is_due(monkeypatch):
    monkeypatch.setattr(loop_module, "STATUS_INTERVAL", 0.1)

    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)  # takes the interval over
        before = world.passes
        for _ in range(10):
            jobs.wake_later("uid")
        assert world.passes == before
        await until(lambda: world.passes > before, "a pass")
        await asyncio.sleep(0.05)
        assert world.passes <= before + 2, "one for the ten, and perhaps one for the status that was due"

    run_counting(scenario)


def test_all_jobs_together_write_steps_at_a_bounded_rate():
    async def scenario(world, jobs):
        for n in range(199):
            another = body()
            another["metadata"] |= {"uid": f"uid-{n}", "deletionTimestamp": "2030-01-01T00:00:00Z"}
            jobs.see(another, lambda _: ())
        jobs.see(body(suspend=False), lambda _: world.watched)
        assert jobs._loops["uid"].status_interval == 200 * STATUS_SHARE

    run_counting(scenario)


def test_a_start_writes_the_status_once():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        await until(lambda: world.passes == 2, "a look at what was created")
        await asyncio.sleep(0.05)
        assert [status["replicas"] for status in world.statuses] == [2]

    run(scenario, Counting())
