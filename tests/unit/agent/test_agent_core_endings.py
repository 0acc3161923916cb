"""The end and the leave of a worker: the agent's decisions in scenarios of worker ``a``."""

from __future__ import annotations

import signal

import pytest

from effects import none, only
from elastrain.agent.core.bounds import STRAGGLER_SECONDS
from elastrain.agent.core.events import (
    CloseJob,
    End,
    KillRanks,
    Leave,
    Publish,
    PublishProgress,
    RankExited,
    Send,
    Signalled,
    StartRanks,
)
from elastrain.api.messages import Diverged, Exit, Hello, Report
from elastrain.api.records import Outcome, Phase, Progress, Target


# ---- the end -------------------------------------------------------------------------------------------------------
def report(step: int, generation: int = 1) -> Report:
    return Report(progress=Progress(generation=generation, world_size=1, members=1, step=step))


def test_progress_is_published_only_if_the_rank_is_global_rank_0(story, make_generation):
    story.training_in(make_generation(1, "a", "b"))
    assert only(story.says(report(12)), PublishProgress).progress.step == 12
    story.sees(generation=make_generation(2, "b", "a"))
    none(story.says(report(13, generation=2)), PublishProgress)


def test_phase_is_finished_if_all_ranks_finished(new_story, make_generation):
    story = new_story(nproc=2).training_in(make_generation(1, "a", slots=2))
    none(story.finishes(rank=0), Publish)
    assert only(story.finishes(rank=1), Publish).phase is Phase.FINISHED


def test_the_job_is_finished_if_the_worker_of_rank_0_ends_with_0(story, make_generation):
    story.training_in(make_generation(1, "a"))
    story.says(report(40))
    story.finishes(step=50)
    effects = story.exits()
    progress = only(effects, PublishProgress).progress
    assert (progress.finished, progress.step) == (True, 50)
    assert effects[-1].termination.outcome is Outcome.FINISHED
    assert effects.index(Leave()) > effects.index(PublishProgress(progress)), (
        "the key is deleted after the progress was published"
    )


def test_the_job_is_not_finished_if_another_worker_ends(story, make_generation):
    story.training_in(make_generation(1, "b", "a"))
    story.finishes()
    effects = story.exits()
    none(effects, PublishProgress)
    assert only(effects, End).termination.outcome is Outcome.FINISHED


def test_outcome_is_finished_if_the_script_never_joined(story):
    story.started()
    effects = story.event(RankExited(1, 0))
    none(effects, PublishProgress)
    assert only(effects, End).termination.outcome is Outcome.FINISHED


def test_outcome_is_finished_with_a_message_if_the_script_leaves_its_loop_early(story, make_generation):
    story.training_in(make_generation(1, "a"))
    ending = only(story.exits(), End).termination
    assert ending.outcome is Outcome.FINISHED
    assert "early" in ending.message


def test_a_crash_during_exit_is_ignored_if_another_worker_holds_rank_0(story, make_generation):
    story.training_in(make_generation(1, "b", "a"))
    story.finishes()
    assert only(story.exits(signal=11), End).termination.outcome is Outcome.FINISHED


def test_the_worker_fails_if_one_rank_leaves_the_loop_and_its_sibling_waits_too_long(new_story, make_generation):
    story = new_story(nproc=2).training_in(make_generation(1, "a", slots=2))
    story.exits(rank=1)
    none(story.later(STRAGGLER_SECONDS - 1), KillRanks)
    story.later(2)
    ending = only(story.exits(signal=15, rank=0), End).termination
    assert (ending.reason, ending.outcome) == ("ScriptFailed", Outcome.FAILED)
    assert "[0]" in ending.message


def test_parked_ranks_exit_if_the_job_finished_without_them(story, sent, make_generation):
    story.training_in(make_generation(2, "b", "a"))
    story.breaks(2)
    assert sent(story.sees(finished=True), Exit) == [Exit(reason="the job has finished", finished=True)]
    assert only(story.leaves(), End).termination.outcome is Outcome.FINISHED


def test_ranks_of_a_healthy_generation_finish_by_themselves_if_the_job_has_finished(story, sent, make_generation):
    story.training_in(make_generation(2, "b", "a"))
    assert not sent(story.sees(finished=True), Exit)


# ---- leaving -------------------------------------------------------------------------------------------------------
def test_a_drain_keeps_training_until_a_generation_without_the_worker_is_adopted(story, sent, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    effects = story.event(Signalled(signal.SIGTERM))
    assert only(effects, Publish).phase is Phase.LEAVING
    assert not sent(effects, Exit)
    assert not sent(story.sees(generation=make_generation(3, "b")), Exit)
    assert sent(story.adopts(3), Exit) == [Exit(reason="asked to stop")]
    ending = only(story.leaves(step=11), End).termination
    assert (ending.outcome, ending.step, ending.exit_code) == (Outcome.DRAINED, 11, 0)


def test_a_leaving_rank_is_kept_if_the_newest_generation_waits_for_it(story, sent, make_generation):
    story.ready()
    story.sees(generation=make_generation(2, "a", "b"))
    assert not sent(story.event(Signalled(signal.SIGTERM)), Exit)
    assert sent(story.sees(generation=make_generation(3, "b")), Exit)


def test_ranks_exit_at_once_if_they_are_in_no_generation(story, sent):
    story.ready()
    assert sent(story.event(Signalled(signal.SIGTERM)), Exit)


def test_ranks_are_terminated_if_they_are_not_ready_when_asked_to_leave(story):
    story.started()
    story.says(Hello(local_rank=0, pid=3))
    assert only(story.event(Signalled(signal.SIGTERM)), KillRanks).signum == signal.SIGTERM
    assert only(story.exits(signal=15), End).termination.outcome is Outcome.DRAINED


def test_the_empty_generation_parks_ranks_if_they_were_not_asked_to_leave(story, sent, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.sees(generation=make_generation(3))
    effects = story.adopts(3)
    assert not sent(effects, Exit)
    assert only(effects, Publish).phase is Phase.READY


@pytest.mark.parametrize(
    "target",
    [
        Target(min=1, max=4, desired=0, reason="Suspend"),
        Target(min=1, max=4, desired=1, leaving=("a",), reason="Suspend"),
    ],
    ids=["desired is 0", "this worker must leave"],
)
def test_the_target_drains_like_a_signal(story, sent, make_generation, target):
    story.training_in(make_generation(2, "a"))
    assert only(story.sees(target=target), Publish).phase is Phase.LEAVING
    story.sees(generation=make_generation(3))
    assert sent(story.adopts(3), Exit) == [Exit(reason="target: Suspend")]
    assert only(story.leaves(), End).termination.outcome is Outcome.DRAINED


def test_the_member_is_ready_again_if_the_target_withdraws_its_leave(story, make_generation):
    story.training_in(make_generation(2, "a"))
    story.sees(target=Target(min=1, max=4, desired=1, leaving=("a",)))
    assert only(story.sees(target=Target(min=1, max=4, desired=1)), Publish).phase is Phase.READY


def test_ranks_are_terminated_then_killed_if_the_drain_takes_too_long(story, make_generation):
    story.training_in(make_generation(2, "a", "b"))
    story.event(Signalled(signal.SIGTERM))
    assert story.core.deadline() == story.now + 25.0
    assert only(story.later(25.1), KillRanks).signum == signal.SIGTERM
    assert only(story.later(2.1), KillRanks).signum == signal.SIGKILL
    ending = only(story.exits(signal=9), End).termination
    assert ending.outcome is Outcome.DRAINED
    assert "in time" in ending.message


def test_ranks_are_terminated_at_once_if_a_second_signal_comes(story, make_generation):
    story.training_in(make_generation(2, "a"))
    story.event(Signalled(signal.SIGINT))
    assert only(story.event(Signalled(signal.SIGINT)), KillRanks).signum == signal.SIGTERM


def test_a_leaving_worker_does_not_restart_a_killed_rank(story, make_generation):
    story.training_in(make_generation(2, "a"))
    story.event(Signalled(signal.SIGTERM))
    effects = story.exits(signal=9)
    none(effects, StartRanks)
    assert only(effects, End).termination.outcome is Outcome.DRAINED


# ---- ranks that do different things -------------------------------------------------------------------------------
WHY = "rank 0 left its loop after step 5 while rank 1 computes step 6"


def test_the_job_ends_if_a_rank_says_that_ranks_have_diverged(story, make_generation):
    story.training_in(make_generation(1, "a", "b"))
    assert only(story.says(Diverged(why=WHY)), CloseJob).why == WHY, "before the end of its process"
    ending = story.exits(code=1)[-1].termination
    assert (ending.outcome, ending.reason, ending.message) == (Outcome.FAILED, "RanksDiverged", WHY)


def test_a_worker_fails_and_does_not_finish_if_ranks_of_other_workers_have_diverged(story, make_generation):
    story.training_in(make_generation(1, "b", "a"))
    exits = [effect.message for effect in story.sees(finished=True, diverged=WHY) if isinstance(effect, Send)]
    assert [message.reason for message in exits] == [f"the job has failed: {WHY}"], "also in a generation that holds"
    effects = story.exits()
    none(effects, PublishProgress)
    assert (effects[-1].termination.outcome, effects[-1].termination.message) == (Outcome.FAILED, WHY)


def test_a_worker_that_starts_after_a_divergence_fails_at_once(story):
    story.registered()
    effects = story.sees(finished=True, diverged=WHY)
    assert only(effects, End).termination.reason == "RanksDiverged"
