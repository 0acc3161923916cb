"""Pods that another party deletes before they start, or before the operator's watch shows them."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta

import pytest

from conditions import until
from elastrain.api.records import Outcome, Termination
from elastrain_operator import clock
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination, Ending, JobRef, Observed
from elastrain_operator.job import loop as loop_module
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import LoopState
from elastrain_operator.watch import parse
from elastrain_resource.job import JobStatus, Leaving
from loop_world import JOB, body, run
from operator_fixtures import NOW
from workers import workers_at

pod = workers_at(NOW)
REF = JobRef("ns", "job", "uid", 1)


def vanish(world, jobs) -> None:
    """All pods go, and no version of them was ever in the watch."""
    gone, world.pods = world.pods, {}
    for raw in gone.values():
        jobs.pod_deleted(JOB, parse.pod(raw, clock.now()))


@pytest.mark.usefixtures("quick_loops")
def test_their_successors_are_paced_and_each_counts_as_lost():
    async def scenario(world, jobs):
        jobs.see(body(replicas=2), lambda _: world.watched)
        born = 0
        for _ in range(2):
            await until(lambda: len(world.pods) == 2, "two pods")
            born += 2
            vanish(world, jobs)
        await until(lambda: world.statuses[-1]["restarts"]["infrastructure"] == born, "all of them counted")
        await asyncio.sleep(0.2)
        assert not world.pods, "the third round waits for 10 s"
        failure = world.statuses[-1]["lastFailure"]
        assert (failure["reason"], failure["message"][:32]) == ("Deleted", "the pod of worker job-2 was dele")
        assert "before it started" in failure["message"]

    run(scenario)


@pytest.mark.usefixtures("quick_loops")
def test_the_job_ends_if_all_its_pods_are_deleted_without_end(monkeypatch):
    monkeypatch.setattr("elastrain_operator.policy.losses.pacing.delay", lambda rounds: 0.0)

    async def scenario(world, jobs):
        jobs.see(body(maxReplicas=1, lossLimit=3), lambda _: world.watched)
        for _ in range(4):
            await until(lambda: world.pods, "a pod")
            vanish(world, jobs)
        await until(lambda: world.statuses[-1]["phase"] == "Failed", "the end")
        assert "LossLimitExceeded" in str(world.statuses[-1]["conditions"])

    run(scenario)


@pytest.mark.usefixtures("quick_loops")
def test_one_that_the_watch_never_showed_counts_when_it_is_missed(monkeypatch):
    monkeypatch.setattr(loop_module, "UNSEEN", timedelta(seconds=0.05))

    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        world.pods.clear()
        await asyncio.sleep(0.1)
        jobs.wake("uid")
        await until(lambda: world.statuses[-1]["restarts"]["infrastructure"] == 2, "both counted")

    run(scenario)


@pytest.mark.usefixtures("quick_loops")
def test_one_whose_deletion_is_shown_while_it_is_asked_for_is_lost_once_and_holds_no_place(monkeypatch):
    monkeypatch.setattr(loop_module, "UNSEEN", timedelta(seconds=0.05))

    async def scenario(world, jobs):
        jobs.see(body(maxReplicas=1, backoffLimit=9), lambda _: world.watched)
        await until(lambda: world.pods, "a pod")
        first, answer = dict(world.pods["job-0"]), world.get_pod

        async def shown_meanwhile(namespace, name):
            """The API server still has it when it answers."""
            monkeypatch.setattr(world, "get_pod", answer)
            vanish(world, jobs)
            return first

        monkeypatch.setattr(world, "get_pod", shown_meanwhile)
        await asyncio.sleep(0.1)
        jobs.wake("uid")
        await until(lambda: "job-1" in world.pods, "its successor")
        assert world.statuses[-1]["restarts"] == {"user": 0, "infrastructure": 1, "preemption": 0}
        assert not any(c["reason"] == "OperatorFault" for s in world.statuses for c in s["conditions"])

    run(scenario)


@pytest.mark.usefixtures("quick_loops")
def test_one_that_is_deleted_while_another_is_asked_for_is_lost_once(monkeypatch):
    monkeypatch.setattr(loop_module, "UNSEEN", timedelta(seconds=0.05))

    async def scenario(world, jobs):
        jobs.see(body(replicas=2, backoffLimit=9), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        answer, other = world.get_pod, parse.pod(world.pods["job-1"], clock.now())

        async def deleted_meanwhile(namespace, name):
            monkeypatch.setattr(world, "get_pod", answer)
            del world.pods["job-1"]
            world.watched.clear()
            jobs.pod_deleted(JOB, other)
            return await answer(namespace, name)

        await asyncio.sleep(0.1)
        monkeypatch.setattr(world, "get_pod", deleted_meanwhile)
        world.watched[:] = [other]
        jobs.wake("uid")
        await until(lambda: "job-2" in world.pods, "its successor")
        await until(lambda: world.statuses[-1]["restarts"]["infrastructure"] == 1, "it is counted")
        assert not any(c["reason"] == "OperatorFault" for s in world.statuses for c in s["conditions"])

    run(scenario)


def decide(make_spec, *pods, state=None, status=None):
    seen = Observed(REF, pods, Coordination())
    return plan(make_spec(), status or JobStatus(next_ordinal=9), seen, NOW, state or LoopState())


def test_pod_that_another_party_deletes_before_its_start_is_lost(make_spec):
    going = pod(0, started=False, terminating=True)
    assert decide(make_spec, going, state=LoopState(alive={"uid-0"})).status.restarts.infrastructure == 1
    assert decide(make_spec, going).status.restarts.infrastructure == 0, "the operator, or an earlier one, deleted it"


def test_worker_that_is_deleted_by_force_is_lost(make_spec):
    made = decide(make_spec, state=LoopState(disappeared={"uid-0": pod(0)}))
    assert made.status.restarts.infrastructure == 1
    assert made.departed == ("uid-0",)


def test_pod_that_is_gone_counts_once(make_spec):
    counted = JobStatus(next_ordinal=9, counted_failures=["uid-0"])
    made = decide(make_spec, state=LoopState(disappeared={"uid-0": pod(0)}), status=counted)
    assert made.status.restarts.infrastructure == 0


def test_worker_that_was_asked_to_leave_is_not_lost_when_it_is_gone(make_spec):
    asked = JobStatus(next_ordinal=9, leaving=[Leaving(since=NOW.isoformat(), workers=["job-0"])])
    assert not decide(
        make_spec, state=LoopState(disappeared={"uid-0": pod(0)}), status=asked
    ).status.restarts.infrastructure


def test_script_error_of_a_pod_that_is_gone_counts_and_paces_its_successor(make_spec):
    record = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom")
    failed = dataclasses.replace(pod(0), ending=Ending(NOW, record, 1, ran=2.0), over=True)
    state, status = LoopState(disappeared={"uid-0": failed}), JobStatus(next_ordinal=9, restarts={"user": 1})
    made = decide(make_spec, state=state, status=status)
    assert made.status.restarts.user == 2
    assert not made.create, "Kubernetes' own collector of ended pods must not end the pause"
    again = plan(make_spec(), made.status, Observed(REF, (), Coordination()), NOW + timedelta(seconds=9), LoopState())
    assert not again.create
    assert plan(make_spec(), made.status, Observed(REF, (), Coordination()), NOW + timedelta(seconds=11)).create


def test_new_job_says_what_it_waits_for_while_the_nodes_cannot_be_listed(make_spec):
    def status_of(share):
        seen = Observed(REF, (), Coordination(), share=share)
        return plan(make_spec(), JobStatus(), seen, NOW, LoopState()).status

    text = "the cluster is unknown: no route to host; meanwhile jobs keep their size"
    waits = status_of(Share(None, "CapacityUnknown", text, is_answer=True))
    (ready,) = [c for c in waits.conditions if c.type == "PodsReady"]
    assert (ready.status, ready.message) == ("False", text)
    assert waits.desired_replicas == 0
    assert status_of(Share(None, "CapacityUnknown", "not yet", is_answer=False)) is None, "an answer comes in a second"
