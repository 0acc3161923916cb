"""The clocks of the API server, the scheduler and the kubelets may differ from the operator's by an hour, each by
itself: the operator dates what it observes, and compares no time of another machine with its own."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from elastrain.api.records import Outcome, Termination
from elastrain_operator.facts import Coordination, JobRef, Observed, Pod
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import LoopState
from elastrain_operator.watch import parse
from elastrain_resource.job import JobStatus
from operator_fixtures import NOW
from raw_cluster import wire_time

HOUR = 3600.0
SKEWS = [(0.0, 0.0, 0.0), *[tuple(sign * HOUR * (n == k) for n in range(3)) for k in range(3) for sign in (-1, 1)]]
REF = JobRef("default", "job", "job-uid", 1)
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom")


class Machines:
    """The clocks of API server, scheduler and kubelet."""

    def __init__(self, pod_body, skew: tuple[float, ...]) -> None:
        self._pod_body = pod_body
        self.api, self.scheduler, self.kubelet = skew

    def pod(self, ordinal: int, age: float, now: float, *, ran: float | None = None, record=None) -> dict:
        """As of ``now`` seconds after the start; created ``age`` seconds before; ``ran``: seconds since its start."""

        def told(clock: float, seconds: float) -> str:
            return wire_time(NOW + timedelta(seconds=seconds + clock))

        fields: dict[str, Any] = {"creationTimestamp": told(self.api, now - age), "phase": "Pending"}
        conditions = [{**NO_NODE, "lastTransitionTime": told(self.scheduler, now - age)}]
        if ran is not None:
            since, until = told(self.kubelet, now - ran), told(self.kubelet, now)
            ended = {
                "exitCode": 1,
                "startedAt": since,
                "finishedAt": until,
                "message": record and record.encode().decode(),
            }
            fields |= {
                "phase": "Running",
                "state": {"terminated": ended} if record else {"running": {"startedAt": since}},
            }
            conditions = [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": told(self.scheduler, now - age)},
                {"type": "Ready", "status": str(not record), "lastTransitionTime": told(self.api, now)},
            ]
        return self._pod_body(ordinal, conditions=conditions, **fields)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def decide(make_spec, bodies, seconds, before=(), *, status=None, **spec):
    """A pass over the raw pods; returns the pods as known, and the plan."""
    known = {p.name: p for p in before}
    pods = [parse.pod(b, at(seconds), known.get(b["metadata"]["name"])) for b in bodies]
    assert all(isinstance(p, Pod) for p in pods)
    seen = Observed(REF, tuple(pods), Coordination())
    return pods, plan(make_spec(**spec), status or JobStatus(next_ordinal=9), seen, at(seconds), LoopState())


@pytest.fixture(params=SKEWS, ids=str)
def machines(request, pod_body) -> Machines:
    return Machines(pod_body, request.param)


def test_pod_that_has_just_been_created_is_not_late_and_an_old_one_is(machines, make_spec):
    pods, first = decide(make_spec, [machines.pod(0, 0, 0)], 0, pendingDeadlineSeconds=60)
    assert first.status.phase == "Pending"
    _, early = decide(make_spec, [machines.pod(0, 59, 59)], 59, pods, pendingDeadlineSeconds=60)
    _, late = decide(make_spec, [machines.pod(0, 60, 60)], 60, pods, pendingDeadlineSeconds=60)
    assert (early.status.phase, late.status.phase) == ("Pending", "Failed")


def test_crash_loop_is_paced_by_the_time_at_which_the_end_was_seen(machines, make_spec):
    status = JobStatus(next_ordinal=9, restarts={"user": 1})
    pods, _ = decide(make_spec, [machines.pod(0, 5, 5, ran=3)], 5)
    ended = machines.pod(0, 6, 6, ran=4, record=FAILED)
    pods, first = decide(make_spec, [ended], 6, pods, status=status)
    assert first.status.restarts.user == 2
    assert not first.create
    _, early = decide(make_spec, [ended], 15, pods, status=first.status)
    _, due = decide(make_spec, [ended], 16, pods, status=first.status)
    assert (len(early.create), len(due.create)) == (0, 4)


def test_no_timestamp_of_another_machine_is_needed_at_all(machines, make_spec):
    """A pod without any time gives the same plan."""

    def without_times(value: Any) -> Any:
        if isinstance(value, list):
            return [without_times(v) for v in value]
        if not isinstance(value, dict):
            return value
        gone = {"creationTimestamp", "lastTransitionTime", "finishedAt"}
        return {k: without_times(v) for k, v in value.items() if k not in gone}

    bodies = [machines.pod(0, 20, 0), machines.pod(1, 900, 0, ran=800), machines.pod(2, 900, 0, ran=800, record=FAILED)]
    _, told = decide(make_spec, bodies, 0)
    _, bare = decide(make_spec, without_times(bodies), 0)
    assert (told.create, told.delete, told.status.conditions) == (bare.create, bare.delete, bare.status.conditions)
