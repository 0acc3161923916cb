"""Workers that do not start in time."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from elastrain_operator.facts import Coordination, JobRef, Observed, Trouble
from elastrain_operator.job.plan import plan
from elastrain_operator.policy.losses import starting
from elastrain_resource.job import JobStatus
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("default", "job", "uid", 1)
PULL = Trouble("ImagePullFailed", "pod job-9, container trainer: image trainer:1: ErrImagePull: no such host")


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


pod = workers_at(NOW)


def decide(make_spec, pods, status=None, now=NOW, **spec):
    spec = make_spec(pendingDeadlineSeconds=60, **spec)
    return plan(spec, status or JobStatus(), Observed(JOB, tuple(pods), Coordination()), now)


# ---- who is late -----------------------------------------------------------------------------------------------------
def test_worker_is_late_at_the_deadline_and_not_before():
    fresh = pod(0, started=False, age=59)
    assert starting.late_workers([fresh], 60, NOW) == ()
    assert starting.late_workers([fresh], 60, NOW + seconds(1)) == (fresh,)
    assert starting.late_workers([fresh], None, NOW + seconds(999)) == ()
    assert starting.next_pending_deadline([pod(1), fresh], 60) == NOW + seconds(1)
    assert starting.next_pending_deadline([pod(1)], 60) is None


@pytest.mark.parametrize("fields", [{"terminating": True}, {"trouble": Trouble("SchedulingGated", "queued")}])
def test_worker_is_not_late_if_a_queue_holds_it_back(fields):
    assert starting.late_workers([pod(0, started=False, **fields)], 60, NOW) == ()


# ---- enough others run -----------------------------------------------------------------------------------------------
def test_late_worker_is_withdrawn_if_enough_others_run(make_spec):
    workers = [pod(0), pod(1), pod(9, started=False, trouble=PULL)]
    made = decide(make_spec, workers, minReplicas=2, maxReplicas=3)
    assert [(d.pod, d.why) for d in made.delete] == [("job-9", "did not start within pendingDeadlineSeconds")]
    assert not made.create
    assert made.status.withdrawal.until == (NOW + seconds(60)).isoformat()
    ready = next(c for c in made.status.conditions if c.type == "PodsReady")
    assert ready.reason == "NotStarted"
    assert "worker job-9 did not start: ImagePullFailed: pod job-9, container trainer: image trainer:1" in ready.message
    assert [n.reason for n in made.events].count("NotStarted") == 1
    assert made.requeue_after == 60
    assert made.status.restarts.infrastructure == 0, "a worker that never ran does not count as lost"


def test_withdrawn_worker_is_retried_after_the_same_time(make_spec):
    before = decide(make_spec, [pod(0), pod(1), pod(9, started=False)], minReplicas=2, maxReplicas=3).status
    again = decide(make_spec, [pod(0), pod(1)], before, NOW + seconds(59), minReplicas=2, maxReplicas=3)
    assert not again.create
    assert not [n for n in again.events if n.reason == "NotStarted"], "one event"
    later = decide(make_spec, [pod(0), pod(1)], before, NOW + seconds(60), minReplicas=2, maxReplicas=3)
    assert len(later.create) == 1
    assert later.status.withdrawal is None


def test_a_withdrawal_ends_if_too_few_workers_are_left(make_spec):
    before = decide(make_spec, [pod(0), pod(1), pod(9, started=False)], minReplicas=2, maxReplicas=3).status
    assert len(decide(make_spec, [pod(0)], before, NOW + seconds(1), minReplicas=2, maxReplicas=3).create) == 2


# ---- too few run -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "trouble",
    [PULL, Trouble("Unschedulable", "pod job-1: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"),
     Trouble("VolumeFailed", "pod job-1: persistentvolumeclaim data not found"),
     Trouble("ContainerNotCreated", "pod job-1, container trainer: a volume cannot be mounted", patience=60)],
)  # fmt: skip
def test_job_fails_with_pod_and_cause_if_it_cannot_train_without_the_late_worker(make_spec, trouble):
    made = decide(make_spec, [pod(0), pod(1, started=False, trouble=trouble)], minReplicas=2, maxReplicas=2)
    failed = next(c for c in made.status.conditions if c.type == "Failed")
    assert (failed.status, failed.reason) == ("True", "PendingDeadlineExceeded")
    words = "1 worker started, minReplicas is 2, and within pendingDeadlineSeconds (60) worker job-1 did"
    assert words in failed.message
    assert f"{trouble.reason}: {trouble.message}" in failed.message


def test_nothing_is_late_if_there_is_no_deadline(make_spec):
    made = plan(make_spec(), JobStatus(), Observed(JOB, (pod(0, started=False, age=9e5),), Coordination()), NOW)
    assert not made.delete
    assert made.status.phase == "Pending"


def test_longest_wait_is_named_first():
    young, old = pod(0, started=False, age=70), dataclasses.replace(pod(1, started=False, age=90), trouble=PULL)
    assert "worker job-1" in starting.withdrawal_of(starting.late_workers([young, old], 60, NOW), 60, NOW).message
    assert "(and 1 more)" in starting.withdrawal_of(starting.late_workers([young, old], 60, NOW), 60, NOW).message
