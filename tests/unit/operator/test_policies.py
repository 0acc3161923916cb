"""The smaller policies, one by one."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

import builders
from elastrain.api.records import (
    Member,
    Outcome,
    Phase,
    Progress,
    Rescale,
    Target,
    Termination,
)
from elastrain_operator.facts import (
    Cause,
    ConditionUpdate,
    Coordination,
    Deletion,
    Ending,
    Loss,
    Pod,
    Refusal,
    RefusalKind,
    Still,
)
from elastrain_operator.policy import ending
from elastrain_operator.policy.losses import counting, pacing
from elastrain_operator.policy.report import conditions, events, training
from elastrain_operator.policy.size import leavers, replicas, sizes
from elastrain_resource.job import CleanPodPolicy, Condition, ConditionType, GenerationStatus, JobStatus, RestartCounts
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom")
DRAINED = Termination(outcome=Outcome.DRAINED)


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


pod = workers_at(NOW, age=3600)


def ended(ordinal: int, record: Termination = FAILED, ago: float = 0.0, **fields) -> Pod:
    return pod(ordinal, ready=False, over=True, ending=Ending(NOW - seconds(ago), record, record.exit_code), **fields)


def records(*names: str, number: int = 1, adopted: int | None = None, **fields) -> Coordination:
    """A generation of these workers; by default all of them have adopted it."""
    adopted = number if adopted is None else adopted
    members = tuple(Member(id=n, worker=n, address="a", generation=adopted) for n in names)
    return Coordination(generation=builders.generation(number, *names), members=members, **fields)


# ---- who comes -------------------------------------------------------------------------------------------------------
def test_leaving_terminating_silent_and_ended_pods_do_not_count_as_workers():
    pods = (pod(0), pod(1), pod(2, terminating=True), pod(3), ended(4))
    assert replicas.active(pods, {"job-1"}, {"job-3"}) == (pods[0],)


def test_refused_ordinals_are_used_before_new_ones_and_never_twice():
    assert replicas.ordinals(3, (2, 3), (pod(3), pod(5)), 4) == (2, 6, 7)


def test_a_thousand_foreign_pods_of_the_jobs_names_cost_a_few_attempts():
    foreign, following, refusal, attempts = set(range(1000)), 0, None, 0
    while (made := replicas.ordinals(2, (), (), following, refusal))[0] in foreign:
        attempts, following = attempts + 1, made[-1] + 1
        refusal = Refusal(RefusalKind.NAME_TAKEN, "", NOW, attempts)
    assert attempts <= 5


def test_a_leaving_worker_is_released_only_by_its_end_its_silence_or_its_deadline():
    due = NOW + seconds(60)
    here = records("job-0")

    def why(pod: Pod, members: Coordination | None = here, now: datetime = NOW) -> str | None:
        deletion = leavers.released(pod, members, due, now)
        return deletion and deletion.why

    assert why(pod(0)) is None
    assert why(pod(0), None) is None
    assert why(pod(1)) is None, "Ready: it exits by itself"
    assert why(pod(1, ready=False)) == "no longer a member"
    assert why(pod(1, ready=False), None) is None, "membership is unknown"
    assert why(ended(0, DRAINED)) == "ended"
    assert why(pod(0), now=due) == "drain deadline passed"


@pytest.mark.parametrize(("members", "goes"), [("job-0", False), ("job-1", True), (None, True)])
def test_a_leaving_worker_that_seems_not_to_have_started_is_released_only_if_it_is_no_member(members, goes):
    """A pod without labels is read every few seconds only: it may train by now. That is looked at before it goes."""
    known = records(members) if members else None
    deletion = leavers.released(pod(0, started=False), known, NOW + seconds(60), NOW)
    assert deletion == (Deletion("job-0", pod(0).uid, "never started", Still.NOT_STARTED) if goes else None)


# ---- losses, budget, pace ------------------------------------------------------------------------------------------
def test_loss_is_counted_once_and_forgotten_when_its_pod_is_gone():
    loss = Loss(ended(0), Cause.USER, "ScriptFailed", "boom")
    first = counting.count(RestartCounts(), (), [loss], [loss.pod])
    assert (first.restarts.user, first.counted, first.fresh) == (1, ("uid-0",), (loss,))
    again = counting.count(first.restarts, first.counted, [loss], [loss.pod])
    assert (again.restarts.user, again.fresh) == (1, ())
    third = counting.count(again.restarts, again.counted, [loss], [loss.pod])
    assert (third.restarts.user, third.counted) == (1, ("uid-0",))
    assert counting.count(again.restarts, again.counted, [], []).counted == ()


@pytest.mark.parametrize(("failures", "wait"), [(0, 0), (1, 0), (2, 10), (3, 20), (4, 40), (7, 300), (1000, 300)])
def test_delay_doubles_after_an_immediate_first_retry_and_is_bounded(failures, wait):
    assert pacing.delay(failures) == wait


def test_next_worker_waits_if_young_workers_failed():
    young = dataclasses.replace(ended(1, ago=4), seen=NOW - seconds(30))
    assert pacing.after_endings(RestartCounts(user=2), [young], NOW) == NOW + seconds(6)
    assert pacing.after_endings(RestartCounts(user=1), [young], NOW) is None


def test_next_worker_does_not_wait_if_the_last_one_had_trained_for_long():
    assert pacing.after_endings(RestartCounts(user=5), [ended(1)], NOW) is None


def test_next_worker_waits_if_workers_are_killed_repeatedly():
    killed = Termination(outcome=Outcome.FAILED, signal=9, reason="RankKilled")
    young = [dataclasses.replace(ended(n, killed), seen=NOW - seconds(20)) for n in range(3)]
    assert pacing.after_endings(RestartCounts(infrastructure=3), young, NOW) == NOW + seconds(20)


def test_failed_pods_stay_for_their_logs_except_old_ones_and_drained_ones_are_deleted():
    pods = [*(ended(n, ago=100 - n) for n in range(5)), ended(5, DRAINED)]
    gone = ending.ended_deletions(pods, frozenset(p.uid for p in pods[:5]), NOW)
    assert {d.pod for d in gone} == {"job-5", "job-0", "job-1"}
    assert not {d.pod for d in ending.ended_deletions(pods[:5], frozenset(), NOW)}, "an uncounted failure stays"


@pytest.mark.parametrize(("attempts", "left"), [(1, {"job-3", "job-4"}), (2, {"job-4"}), (9, set())])
def test_the_oldest_failed_pods_go_first_if_a_quota_that_counts_them_refuses_a_pod(attempts, left):
    pods, words = [ended(n, ago=100 - n) for n in range(2, 5)], "exceeded quota: q, requested: count/pods=1"
    counted = frozenset(p.uid for p in pods)
    refusal = Refusal(RefusalKind.QUOTA_EXCEEDED, words, NOW, attempts)
    gone = {d.pod for d in ending.ended_deletions(pods, counted, NOW, refusal)}
    assert {p.name for p in pods} - gone == left
    of_cpu = dataclasses.replace(refusal, message="exceeded quota: q, requested: cpu=1")
    assert ending.ended_deletions(pods, counted, NOW, of_cpu) == (), "their logs stay: they hold no cpu"


def test_ended_worker_is_deleted_if_its_sidecars_hold_resources():
    held = dataclasses.replace(ended(0, ago=10), over=False)
    assert ending.ended_deletions([held], frozenset({"uid-0"}), NOW) == ()
    assert [d.pod for d in ending.ended_deletions([held], frozenset({"uid-0"}), NOW + seconds(20))] == ["job-0"]


# ---- the end ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy", "at_once", "later"),
    [
        (CleanPodPolicy.RUNNING, {"job-2"}, {"job-1", "job-2"}),
        (CleanPodPolicy.ALL, {"job-0", "job-2"}, {"job-0", "job-1", "job-2"}),
        (CleanPodPolicy.NONE, {"job-2"}, {"job-2"}),
    ],
)
def test_finished_job_keeps_the_pods_of_its_policy(policy, at_once, later):
    pods = [ended(0), pod(1), pod(2, started=False, ready=False), pod(3, terminating=True)]
    for wait, expected in ((0, at_once), (ending.FINISH_GRACE, later)):
        gone = ending.finished_deletions(pods, policy, ConditionType.SUCCEEDED, NOW, NOW + seconds(wait))
        assert {d.pod for d in gone} == expected


FINISHED = Termination(outcome=Outcome.FINISHED, step=9)


def test_job_succeeds_if_progress_is_finished():
    finished = Progress(generation=1, world_size=1, members=1, step=9, finished=True)
    assert (
        ending.success_of_rank_zero([pod(0)], Coordination(progress=finished)).message == "training finished at step 9"
    )


def test_job_succeeds_if_rank_0_s_worker_has_finished_and_not_before():
    where = records("job-1", "job-0")
    assert ending.success_of_rank_zero([ended(0, FINISHED), pod(1)], where) is None, "rank 0 may still save"
    assert ending.success_of_rank_zero([pod(0), ended(1, FINISHED)], where).message == "training finished at step 9"


def test_job_succeeds_without_etcd_only_if_all_have_finished():
    assert ending.success_of_rank_zero([ended(0, FINISHED), pod(1)], None) is None
    assert ending.success_of_rank_zero([ended(0, FINISHED), ended(1)], None) is None
    assert ending.success_of_rank_zero([ended(0, FINISHED), ended(1, FINISHED)], None).reason == "Finished"
    assert ending.success_of_rank_zero([], None) is None


def test_job_is_finishing_while_workers_of_that_time_run():
    done = ended(0, FINISHED)
    assert ending.finishing([done, pod(1)], None)
    assert not ending.finishing([ended(0), pod(1)], None)
    assert not ending.finishing([done], None), "rank 0's worker was lost: new workers complete the job"
    assert not ending.finishing([done, dataclasses.replace(pod(2), seen=NOW + seconds(1))], None)
    said = Member(id="job-0", worker="job-0", address="a", phase=Phase.FINISHED)
    assert ending.finishing([pod(0)], Coordination(members=(said,)))


def test_job_is_not_finishing_for_a_worker_whose_ranks_have_started_again():
    """Rank 0 was killed after the last step: the others have ended, and only new workers can complete the job."""
    trained = builders.generation(1, "job-0", "job-1")
    first = Member(id=trained.members[0].id, worker="job-0", address="a")
    anew = first.model_copy(update={"id": "job-0.anew"})
    pods = [pod(0), ended(1, FINISHED)]
    assert ending.finishing(pods, Coordination(generation=trained, members=(first,)))
    assert ending.finishing(pods, Coordination(generation=trained)), "it may register again"
    assert not ending.finishing(pods, Coordination(generation=trained, members=(anew,)))


def test_job_is_not_finished_if_rank_0_is_lost_while_others_hold_the_final_state():
    """They run their scripts again, with a new worker in the place of the lost one."""
    trained = builders.generation(1, "job-0", "job-1")
    holder = Member(id=trained.members[1].id, worker="job-1", address="a", phase=Phase.FINISHED)
    pods, held = [ended(0), pod(1)], Coordination(generation=trained, members=(holder,))
    assert ending.success_of_rank_zero(pods, held) is None
    assert ending.finishing(pods, held), "it keeps its state: no worker is created yet"
    anew = holder.model_copy(update={"id": "job-1.anew", "phase": Phase.WARMING, "holds": True})
    again = Coordination(generation=trained, members=(anew,))
    assert ending.success_of_rank_zero(pods, again) is None
    assert not ending.finishing(pods, again)


def test_failure_quotes_the_newest_script_error():
    old = Loss(ended(0, ago=50), Cause.USER, "ScriptFailed", "old")
    new = Loss(ended(1, ago=5), Cause.USER, "ScriptFailed", "new", log_tail="last line")
    failed = ending.failure(1, RestartCounts(user=2), [new, old])
    assert "last: ScriptFailed: new\nlast line" in failed.message
    assert ending.failure(2, RestartCounts(user=2, infrastructure=99), [new, old]) is None


def test_deadline_counts_active_time_only(make_spec):
    spec = make_spec(activeDeadlineSeconds=60)
    assert ending.overdue(spec, NOW, NOW + seconds(59)) is None
    assert ending.overdue(spec, NOW, NOW + seconds(60)).reason == "DeadlineExceeded"
    assert ending.overdue(make_spec(activeDeadlineSeconds=60, suspend=True), NOW, NOW + seconds(99)) is None


def test_ttl_runs_from_completion():
    assert ending.expiry(5, NOW) == NOW + seconds(5)
    assert ending.expiry(None, NOW) is ending.expiry(5, None) is None


# ---- target ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("before", "replicas", "suspend", "reason"),
    [
        (None, 2, False, "Start"),
        (1, 2, False, "Grow"),
        (3, 2, False, "Drain"),
        (2, 2, False, "Before"),
        (2, 2, True, "Suspend"),
        (0, 2, False, "Start"),
    ],
)
def test_target_has_the_reason_of_its_size(make_spec, before, replicas, suspend, reason):
    previous = None if before is None else Target(min=1, max=4, desired=before, reason="Before")
    desired = 0 if suspend else replicas
    made = sizes.target(make_spec(replicas=replicas, suspend=suspend), desired, previous, (), stop=False)
    assert (made.desired, made.reason) == (desired, reason)


def test_target_has_the_grace_period_that_a_policy_has_left(make_spec):
    template = {
        "spec": {
            "terminationGracePeriodSeconds": 120,
            "containers": [{"name": "trainer", "image": "m:1", "command": ["t"]}],
        }
    }
    spec = make_spec(replicas=2, template=template)
    pods = [Pod(f"job-{n}", f"uid-{n}", n, NOW, grace=grace) for n, grace in enumerate((120.0, 15.0))]
    assert sizes.target(spec, 2, None, (), pods[:1], stop=False).drain is None
    assert sizes.target(spec, 2, None, (), pods, stop=False).drain == 10.0


# ---- what is seen of training --------------------------------------------------------------------------------------
def test_generation_is_in_force_when_all_that_live_have_adopted_it():
    before = GenerationStatus(number=1, size=1, reason="Start")
    assert training.in_force(before, records("a", "b", number=2)) == (
        GenerationStatus(number=2, size=2, reason="Grow"), ("a", "b"),
    )  # fmt: skip
    assert training.in_force(before, records("a", "b", number=2, adopted=1)) == (before, ("a", "b"))
    assert training.in_force(None, records("a", number=1, adopted=0)) == (None, ())


def test_last_rescale_keeps_the_time_at_which_it_was_first_seen():
    start = Rescale(generation=1, from_size=0, to_size=2, reason="Start", step=0, pause_seconds=1)
    grown = Rescale(
        generation=2, from_size=2, to_size=4, reason="Grow", step=9, pause_seconds=0.25, phases={"transfer": 0.1}
    )
    report = Progress(generation=2, world_size=4, members=4, step=9, rescales=(start, grown))
    first = training.last_rescale(None, Coordination(progress=report), NOW)
    assert (first.from_, first.to, first.pause_seconds, first.time) == (2, 4, 0.25, NOW.isoformat())
    assert first.phases == {"transfer": 0.1}
    assert training.last_rescale(first, Coordination(progress=report), NOW + seconds(9)) is first
    only_start = report.model_copy(update={"rescales": (start,)})
    assert training.last_rescale(None, Coordination(progress=only_start), NOW) is None


# ---- conditions and events -------------------------------------------------------------------------------------------
def test_transition_time_moves_only_if_the_status_changes():
    first = conditions.merge([], [ConditionUpdate(ConditionType.RUNNING, "True", "Training", "1")], NOW)
    same = conditions.merge(first, [ConditionUpdate(ConditionType.RUNNING, "True", "Training", "2")], NOW + seconds(5))
    assert (same[0].last_transition_time, same[0].message) == (NOW.isoformat(), "2")
    other = conditions.merge(same, [ConditionUpdate(ConditionType.RUNNING, "False", "NoGeneration")], NOW + seconds(9))
    assert other[0].last_transition_time == (NOW + seconds(9)).isoformat()


def told(old: JobStatus, new: JobStatus) -> list[str]:
    return [n.reason for n in events.events_of(old, new, None, None, ())]


def status(kind: ConditionType, truth: str, reason: str, message: str = "") -> JobStatus:
    condition = Condition(type=kind, status=truth, reason=reason, message=message, last_transition_time="t")
    return JobStatus(conditions=[condition])


def test_trouble_causes_one_event_if_its_message_changes():
    pulling = status(ConditionType.PODS_READY, "False", "ImagePullFailed", "ErrImagePull")
    backing_off = status(ConditionType.PODS_READY, "False", "ImagePullFailed", "ImagePullBackOff")
    assert told(JobStatus(), pulling) == ["ImagePullFailed"]
    assert told(pulling, backing_off) == []


def test_normal_operation_causes_no_events():
    starting = status(ConditionType.PODS_READY, "False", "Starting")
    assert told(JobStatus(), starting) == told(starting, status(ConditionType.PODS_READY, "True", "AllTrain")) == []


def test_resumption_and_recovery_cause_events():
    suspended = status(ConditionType.SUSPENDED, "True", "Drained")
    assert told(suspended, status(ConditionType.SUSPENDED, "False", "Active")) == ["Resumed"]
    failed = status(ConditionType.CHECKPOINT_HEALTHY, "False", "SaveFailed")
    assert told(JobStatus(), failed) == ["SaveFailed"]
    assert told(failed, status(ConditionType.CHECKPOINT_HEALTHY, "True", "Saved")) == ["Saved"]
