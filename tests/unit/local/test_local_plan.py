"""The operator's decisions for one machine."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.records import Outcome, Termination
from elastrain_cli.local.plan import Observed, Result, Worker, plan


def worker(ordinal: int, *, ready: bool = True, leaving: bool = False, ended: Termination | None = None) -> Worker:
    return Worker(f"w-{ordinal}", ordinal, ready, leaving, ended, ended_at=100.0)


def failed(reason: str = "ScriptFailed", message: str = "") -> Termination:
    return Termination(outcome=Outcome.FAILED, exit_code=1, reason=reason, message=message)


DRAINED = Termination(outcome=Outcome.DRAINED)
FINISHED = Termination(outcome=Outcome.FINISHED)


def observed(*workers: Worker, desired: int = 2, **fields) -> Observed:
    return Observed(**{"min": 1, "max": 4, "desired": desired, "backoff_limit": 1, "workers": workers, **fields})


def test_workers_are_started_if_there_are_fewer_than_desired():
    assert plan(observed(worker(0), desired=3), 0.0).start == 2


def test_a_lost_worker_is_replaced_at_once():
    lost = worker(1, ended=failed("AgentKilled"))
    assert plan(observed(worker(0), lost), 100.0).start == 1


def test_a_drained_worker_is_replaced_if_the_desired_number_is_unchanged():
    assert plan(observed(worker(0), worker(1, ended=DRAINED)), 100.0).start == 1


def test_the_youngest_are_asked_to_leave_if_there_are_more_than_desired():
    decided = plan(observed(worker(0), worker(1), worker(2), worker(3)), 0.0)
    assert decided.target.leaving == ("w-3", "w-2")
    assert decided.target.desired == 2


def test_workers_that_do_not_train_yet_are_asked_to_leave_first():
    decided = plan(observed(worker(0), worker(1, ready=False), worker(2)), 0.0)
    assert decided.target.leaving == ("w-1",)


def test_no_other_worker_is_asked_to_leave_while_one_is_leaving():
    decided = plan(observed(worker(0), worker(1), worker(2, leaving=True)), 0.0)
    assert decided.target.leaving == ("w-2",)
    assert decided.start == 0


def test_a_failed_script_is_retried_within_the_limit():
    decided = plan(observed(worker(0, ended=failed()), desired=1), 100.0)
    assert (decided.start, decided.result) == (1, None)


@pytest.mark.parametrize(
    ("workers", "result"),
    [
        ([failed(message="KeyError: x"), failed(message="KeyError: x")], Result.FAILED),
        ([failed(message="KeyError: x"), failed(message="OSError: y")], None),
        ([failed(message="KeyError: x"), None], None),
        ([failed(message="KeyError: x")], None),  # the other one has not been started yet
    ],
)
def test_the_job_fails_after_one_round_if_all_workers_end_by_one_error_before_any_has_trained(workers, result):
    ended = [worker(n, ready=False, ended=each) for n, each in enumerate(workers)]
    assert plan(observed(*ended, backoff_limit=6), 200.0).result is result
    trained = [dataclasses.replace(w, trained=True) for w in ended]
    assert plan(observed(*trained, backoff_limit=6), 200.0).result is None


def test_the_job_fails_if_the_limit_is_passed():
    decided = plan(observed(worker(0, ended=failed()), worker(1, ended=failed()), desired=1), 200.0)
    assert decided.result is Result.FAILED
    assert decided.failure is not None
    assert decided.failure.name == "w-1"


def test_others_are_drained_before_the_job_fails():
    decided = plan(observed(worker(0, ended=failed()), worker(1, ended=failed()), worker(2)), 200.0)
    assert (decided.result, decided.target.desired) == (None, 0)


def test_lost_workers_do_not_count_against_the_limit():
    lost = [worker(i, ended=failed("RankKilled")) for i in range(20)]
    decided = plan(observed(*lost, desired=1), 1000.0)
    assert (decided.start, decided.result) == (1, None)


def test_a_pause_comes_before_another_try_if_workers_keep_failing():
    lost = [worker(i, ended=failed("RankKilled")) for i in range(4)]
    decided = plan(observed(*lost, desired=1), 100.0)
    assert (decided.start, decided.again_at) == (0, 104.0)
    assert plan(observed(*lost, desired=1), 104.0).start == 1


def test_no_pause_comes_if_the_worker_that_was_lost_had_trained():
    lost = [replace(worker(i, ended=failed("AgentKilled")), ended_at=100.0 + i, trained=True) for i in range(4)]
    assert plan(observed(*lost, desired=1), 103.0).start == 1
    stillborn = [replace(worker(4 + i, ended=failed("AgentKilled")), ended_at=104.0 + i) for i in range(2)]
    decided = plan(observed(*lost, *stillborn, desired=1), 105.0)
    assert (decided.start, decided.again_at) == (0, 107.0)


def test_a_command_that_cannot_be_run_fails_the_job_at_once():
    assert plan(observed(worker(0, ended=failed("Usage")), backoff_limit=6), 100.0).result is Result.FAILED


def test_no_worker_is_started_or_asked_to_leave_if_the_job_has_finished():
    decided = plan(observed(worker(0), finished=True), 0.0)
    assert (decided.start, decided.target.leaving, decided.result) == (0, (), None)
    assert decided.target.desired == 2, "at 0, every worker would have to leave"
    assert plan(observed(worker(0, ended=FINISHED), finished=True), 0.0).result is Result.FINISHED


def test_the_job_is_finished_if_a_script_that_never_joined_ended_with_0():
    assert plan(observed(worker(0, ended=FINISHED), desired=1), 0.0).result is Result.FINISHED


def test_the_job_is_finished_if_the_worker_of_rank_0_ended_with_0_and_etcd_does_not_say_so():
    assert plan(observed(worker(0), worker(1, ended=FINISHED), first="w-1"), 0.0).result is None
    others = worker(0, ended=failed("RankKilled")), worker(1, ended=FINISHED)
    assert plan(observed(*others, first="w-1"), 102.0).result is Result.FINISHED


def test_the_last_record_is_awaited_for_a_bounded_time_if_all_workers_have_finished():
    early = plan(observed(worker(0, ended=FINISHED), first="w-0"), 101.0)
    assert (early.result, early.start, early.again_at) == (None, 0, 102.0)
    assert plan(observed(worker(0, ended=FINISHED), first="w-0", finished=True), 100.0).result is Result.FINISHED


def test_no_worker_is_started_while_others_hold_the_final_state_for_a_lost_rank_0():
    holder = replace(worker(1), holds=True)
    decided = plan(observed(worker(0, ended=failed("AgentKilled")), holder, first="w-0"), 200.0)
    assert (decided.start, decided.target.leaving, decided.result) == (0, (), None)


def test_a_lost_rank_0_is_replaced_when_the_others_run_their_scripts_again():
    lost, again = worker(0, ended=failed("AgentKilled")), worker(1, ready=False)
    assert plan(observed(lost, again, first="w-0"), 200.0).start == 1
    ended = worker(1, ended=FINISHED)
    assert plan(observed(lost, ended, first="w-0"), 200.0).start == 2, "the job is not finished without rank 0's end"


def test_the_job_fails_if_the_script_of_rank_0_fails_after_training():
    others = [worker(1, ready=False), worker(2, ended=failed()), worker(3, ended=failed())]
    assert plan(observed(*others, first="w-1"), 200.0).target.reason == "Failed"


@pytest.mark.parametrize(("stopping", "desired", "reason"), [(True, 2, "Stop"), (False, 0, "Suspend")])
def test_all_workers_are_drained_if_the_user_stops_or_suspends_the_job(stopping, desired, reason):
    running = plan(observed(worker(0), stopping=stopping, desired=desired), 0.0)
    assert (running.target.desired, running.target.reason, running.result) == (0, reason, None)
    ended = plan(observed(worker(0, ended=DRAINED), stopping=stopping, desired=desired), 0.0)
    assert ended.result is Result.DRAINED


ENDINGS = st.sampled_from([None, None, None, DRAINED, failed("RankKilled"), failed()])
WORKERS = st.lists(st.tuples(st.booleans(), st.booleans(), ENDINGS), max_size=8).map(
    lambda rows: [worker(i, ready=r, leaving=v, ended=e) for i, (r, v, e) in enumerate(rows)]
)


@given(WORKERS, st.integers(0, 4), st.booleans(), st.booleans(), st.floats(0, 1000))
def test_a_plan_keeps_its_promises(workers, desired, finished, stopping, now):
    seen = observed(*workers, desired=desired, finished=finished, stopping=stopping, backoff_limit=3)
    decided = plan(seen, now)
    running = {w.name for w in workers if w.ended is None}
    going = {w.name for w in workers if w.leaving} & running | set(decided.target.leaving)
    assert set(decided.target.leaving) <= running, "only running workers can leave"
    assert len(running - going) + decided.start <= max(desired, len(running)), (
        "no more workers than desired are started"
    )
    assert not decided.start or len(running - going) + decided.start == desired
    assert decided.result is None or not running, "a job is over only when no worker runs"
    assert not (decided.start and decided.result), "no worker is started for a job that is over"


# ---- warm spares ----------------------------------------------------------------------------------------------------
def test_a_spare_is_started_when_the_job_trains_and_not_before():
    assert plan(observed(spares=1), 0.0).start == 2
    assert plan(observed(worker(0), worker(1), spares=1), 0.0).start == 1
    assert plan(observed(worker(0), worker(1), worker(2, ready=False), spares=1), 0.0).start == 0


def test_training_workers_leave_at_a_shrink_before_spares():
    decided = plan(observed(worker(0), worker(1), worker(2), worker(3, ready=False), spares=1), 0.0)
    assert (decided.target.leaving, decided.start) == (("w-2",), 0)


def test_spares_leave_with_the_others_if_the_job_is_suspended():
    decided = plan(observed(worker(0), worker(1, ready=False), desired=0, spares=1), 0.0)
    assert (decided.target.desired, decided.start) == (0, 0)


@pytest.mark.parametrize("others", [(), (FINISHED,), (DRAINED, FINISHED)])
def test_the_job_fails_whatever_its_limit_and_whatever_others_say_if_ranks_have_diverged(others):
    workers = [worker(n, ended=ended) for n, ended in enumerate((*others, failed("RanksDiverged")))]
    decided = plan(observed(*workers, backoff_limit=9, finished=True), 100.0)
    assert (decided.result, decided.start) == (Result.FAILED, 0)
    assert decided.failure.ended.reason == "RanksDiverged"
