"""Losses that are not the script's fault: limited only without progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from elastrain.api.records import Progress
from elastrain_operator.facts import Cause, Coordination, JobRef, Loss, Observed, Pod
from elastrain_operator.job.plan import plan
from elastrain_operator.policy.losses import counting, pacing
from elastrain_resource.job import JobStatus

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("default", "job", "uid", 1)


def loss(cause: Cause = Cause.INFRASTRUCTURE) -> Loss:
    return Loss(Pod("job-1", "uid-1", 1, NOW), cause, "NodeLost", "worker job-1 is lost")


def lose(before, *fresh, step=None, after=0.0):
    return counting.update_streak(before, fresh, step, NOW + timedelta(seconds=after))


def test_losses_without_a_step_in_between_add_up():
    first = lose(None, loss(), loss(Cause.PREEMPTION), step=5)
    assert lose(first, loss(), step=5).count == 3
    assert lose(None, loss(Cause.USER)) is None, "failures of the script are no part of it"


@pytest.mark.parametrize(("step", "after"), [(6, 1), (5, 3600)])
def test_streak_ends_with_a_step_or_by_the_clock(step, after):
    before = lose(None, loss(), step=5)
    assert lose(before, step=step, after=after) is None
    assert lose(before, loss(), step=step, after=after).count == 1


def test_first_step_of_all_ends_a_streak_and_a_silent_etcd_does_not():
    assert lose(lose(None, loss()), step=0) is None
    assert lose(lose(None, loss(), step=5)).count == 1


@pytest.mark.parametrize("cause", [Cause.INFRASTRUCTURE, Cause.PREEMPTION])
def test_job_fails_when_the_limit_is_exceeded(make_spec, cause):
    spec = make_spec(maxReplicas=2, lossLimit=3)
    at_limit = lose(None, *[loss(cause)] * 6)
    assert counting.streak_verdict(spec, at_limit, None) is None
    last = counting.last_failure(None, [loss(cause)], NOW)
    failed = counting.streak_verdict(spec, lose(at_limit, loss(cause)), last)
    assert failed.reason == "LossLimitExceeded"
    assert "7 workers in a row were lost without a committed step" in failed.message
    assert "times maxReplicas (2) is 6; last: NodeLost: worker job-1 is lost" in failed.message


def test_replacements_wait_longer_with_each_round_of_losses(make_spec):
    spec = make_spec(replicas=2)
    waits = [pacing.after_streak(spec, lose(None, *[loss()] * n)) for n in (1, 2, 3, 5, 99)]
    assert waits == [None, None, *(NOW + timedelta(seconds=s) for s in (10, 20, 300))]
    assert pacing.after_streak(spec, None) is None


def test_streak_is_kept_in_the_status_and_ends_with_progress(make_spec):
    going = Pod("job-0", "uid-0", 0, NOW, started=True, ready=True, terminating=True)
    silent = Coordination()
    made = plan(make_spec(maxReplicas=1), JobStatus(step=5), Observed(JOB, (going,), silent), NOW)
    assert (made.status.loss_streak.count, made.status.loss_streak.step) == (1, 5)
    again = plan(make_spec(maxReplicas=1), made.status, Observed(JOB, (), silent), NOW)
    assert (again.status or made.status).loss_streak == made.status.loss_streak
    moved = Coordination(progress=Progress(generation=2, world_size=1, members=1, step=6))
    assert plan(make_spec(maxReplicas=1), made.status, Observed(JOB, (), moved), NOW).status.loss_streak is None
