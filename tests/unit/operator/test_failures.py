"""Which failure is shown: the first of the newest incident, with the last lines of its rank."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastrain.api.records import Outcome, Termination
from elastrain_operator.facts import Cause, Coordination, Ending, JobRef, Loss, Observed, Pod, Verdict
from elastrain_operator.job.plan import plan
from elastrain_operator.policy import ending
from elastrain_operator.policy.losses.counting import QUOTE_CHARS, TAIL_CHARS, last_failure, last_lines, quote
from elastrain_operator.policy.report import events
from elastrain_resource.job import ConditionType, JobStatus, RestartCounts

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def failed(ordinal: int, ago: float, rank: int | None = None, log: str = "", cause=Cause.USER, lived=3600.0) -> Loss:
    end = NOW - timedelta(seconds=ago)
    record = Termination(outcome=Outcome.FAILED, exit_code=1, rank=rank, log_tail=log)
    pod = Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, end - timedelta(seconds=lived), ending=Ending(end, record))
    return Loss(pod, cause, "ScriptFailed", f"worker job-{ordinal}: boom {ordinal}", log)


def test_the_first_rank_of_an_incident_is_quoted_and_the_others_are_named():
    words = quote([failed(0, ago=3, rank=0), failed(3, ago=5, rank=3, log="a\nline 7"), failed(1, ago=4, rank=1)], 500)
    assert words == (
        "last: ScriptFailed: worker job-3: boom 3 (the first; job-1, job-0 failed within 10 s of it)\na\nline 7"
    )


def test_the_lower_rank_comes_first_within_a_second():
    assert "boom 7" in quote([failed(2, ago=5, rank=2), failed(7, ago=5, rank=1)], 500).split("(")[0]


def test_an_earlier_incident_is_not_mixed_in():
    assert quote([failed(0, ago=60, log="old"), failed(1, ago=5, log="new")], 500) == (
        "last: ScriptFailed: worker job-1: boom 1\nnew"
    )


def test_the_predecessor_of_a_worker_that_failed_at_once_is_not_in_its_incident():
    assert quote([failed(0, ago=4), failed(1, ago=1, lived=2)], 500) == "last: ScriptFailed: worker job-1: boom 1"


def test_many_others_are_counted():
    words = quote([failed(n, ago=5, rank=n) for n in range(9)], 500)
    assert words.endswith("(the first; job-1, job-2, job-3 and 5 more failed within 10 s of it)")


@pytest.mark.parametrize(
    ("chars", "expected"),
    [(100, "one\ntwo\nthree"), (9, "two\nthree"), (8, "three"), (3, "ree"), (0, ""), (-5, "")],
)
def test_whole_lines_from_the_end_are_kept(chars, expected):
    assert last_lines("one\ntwo\nthree\n", chars) == expected


def test_condition_and_event_of_a_failed_job_end_with_the_last_line_of_the_log():
    log = "\n".join(f"line {n} of a long traceback" for n in range(200))
    made = ending.failure(0, RestartCounts(user=1), [failed(1, ago=5, log=log)])
    assert len(made.message) <= QUOTE_CHARS + 2
    assert made.message.endswith("line 199 of a long traceback")
    (told,) = [n for n in _events(made) if n.reason == "Failed"]
    assert told.message == made.message, "nothing of it is cut off"


def _events(made: Verdict):
    from elastrain_operator.policy.report import conditions

    assert made.condition is ConditionType.FAILED
    new = JobStatus(conditions=conditions.merge([], conditions.ended(made), NOW))
    return events.events_of(JobStatus(), new, None, None, ())


def test_the_event_of_a_loss_has_the_last_lines_too():
    (told,) = events.events_of(JobStatus(), JobStatus(), None, None, [failed(1, ago=5, log="a\nlast line")])
    assert told.message.endswith("(user: ScriptFailed)\na\nlast line")


# ---- status.lastFailure ----------------------------------------------------------------------------------------------
def test_status_has_the_first_failure_with_its_rank_and_a_bounded_log():
    shown = last_failure(None, [failed(2, 4, rank=5, log="x" * 9000), failed(1, 3, rank=0)], NOW)
    assert (shown.worker, shown.rank, shown.cause) == ("job-2", 5, "user")
    assert shown.message == "worker job-2: boom 2"
    assert len(shown.log_tail) == TAIL_CHARS


def test_it_stays_if_others_of_the_incident_fail_after_it():
    first = last_failure(None, [failed(2, ago=9)], NOW)
    assert last_failure(first, [failed(1, ago=4)], NOW) is first
    assert last_failure(first, [], NOW) is first


def test_it_changes_with_the_next_incident():
    first = last_failure(None, [failed(2, ago=60)], NOW)
    assert last_failure(first, [failed(1, ago=4)], NOW).worker == "job-1"


def test_a_script_s_error_is_shown_before_a_killed_rank():
    killed = failed(1, ago=6, cause=Cause.INFRASTRUCTURE)
    assert last_failure(None, [killed, failed(2, ago=4)], NOW).worker == "job-2"
    shown = last_failure(None, [killed], NOW)
    assert last_failure(shown, [failed(2, ago=4)], NOW).worker == "job-2"


def test_a_pod_without_an_ending_is_lost_now():
    gone = Loss(Pod("job-0", "uid-0", 0, NOW - timedelta(hours=1)), Cause.PREEMPTION, "Preempted", "preempted")
    assert last_failure(None, [gone], NOW).time == NOW.isoformat()


# ---- after the first round -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("workers", "reason"), [(1, "Starting"), (2, "BackingOff")])
def test_pods_ready_has_the_error_if_all_workers_failed_before_the_first_step(make_spec, workers, reason):
    record = Termination(outcome=Outcome.FAILED, exit_code=1, rank=0, reason="ScriptFailed", message="ValueError: 41")
    pods = tuple(replace(failed(n, ago=1, lived=20).pod, ending=Ending(NOW, record, 1)) for n in range(workers))
    before = JobStatus(desired_replicas=workers, next_ordinal=workers)
    seen = Observed(JobRef("default", "job", "uid", 1), pods, Coordination())
    made = plan(make_spec(replicas=workers, minReplicas=workers, maxReplicas=workers), before, seen, NOW)
    ready = next(c for c in made.status.conditions if c.type == "PodsReady")
    assert (ready.reason, made.status.restarts.user) == (reason, workers)
    assert ready.message.endswith("last failure: worker job-0, rank 0: ValueError: 41")
