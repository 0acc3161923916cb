"""After training: ranks hold the final state for rank 0's script, and run theirs again if it is lost."""

from __future__ import annotations

import pytest

from effects import none, only
from elastrain.agent.core.bounds import KEEP_SECONDS
from elastrain.agent.core.events import End, KillRanks, Publish, Reincarnate, Signalled, StartRanks
from elastrain.api.messages import Exit, Hello, Holds, Kept, Repeat
from elastrain.api.records import Outcome, Phase


@pytest.fixture
def held(story, make_generation, make_member):
    """Worker ``a`` holds the final state, while ``b`` runs the script of rank 0."""
    story.others = (make_member("b", Phase.FINISHED),)
    story.training_in(make_generation(1, "b", "a"))
    story.finishes()
    none(story.says(Holds()), End, KillRanks)
    return story


def lose_rank_0(story) -> list:
    story.others = ()
    return story.hears_the_end_of(1)


def test_rank_ends_if_the_script_of_rank_0_has_ended(held, sent):
    assert sent(held.sees(finished=True), Exit) == [Exit(reason="the job has finished", finished=True)]
    assert only(held.exits(), End).termination.outcome is Outcome.FINISHED


def test_rank_keeps_its_state_and_starts_again_if_rank_0_is_lost(held, sent):
    effects = lose_rank_0(held)
    assert [m.why for m in sent(effects, Repeat)] == ["rank 0 on worker b was lost before its script had ended"]
    none(effects, KillRanks)
    effects = held.says(Kept(why="rank 0 was lost"))
    only(effects, Reincarnate)
    only(effects, KillRanks)
    held.registered()
    only(held.exits(signal=9), StartRanks)
    held.says(Hello(local_rank=0, pid=2))
    assert [e for e in held.log if isinstance(e, Publish)][-1].holds, "others wait for the state in its node's memory"


def test_rank_goes_on_holding_if_another_than_rank_0_is_lost(held, sent, make_member):
    held.others = (make_member("b", Phase.FINISHED),)
    effects = held.hears_the_end_of(1)
    assert not sent(effects, Repeat)
    none(effects, KillRanks, Reincarnate)


def test_rank_that_still_runs_its_script_is_awaited_for_a_while(story, make_generation, make_member, sent):
    story.others = (make_member("b", Phase.FINISHED),)
    story.training_in(make_generation(1, "b", "a"))
    story.finishes()
    none(lose_rank_0(story), KillRanks)
    assert sent(story.says(Holds()), Repeat)
    none(story.later(KEEP_SECONDS - 1), KillRanks)
    only(story.later(2), KillRanks)


def test_mates_of_rank_0_keep_the_state_if_only_its_process_is_killed(new_story, make_generation, sent):
    story = new_story(nproc=2).training_in(make_generation(1, "a", slots=2))
    for rank in (0, 1):
        story.finishes(rank=rank)
    story.says(Holds(), rank=1)
    effects = story.exits(signal=9, rank=0)
    assert sent(effects, Repeat)
    none(effects, KillRanks)
    effects = story.says(Kept(why="rank 0 was killed"), rank=1)
    only(effects, Reincarnate)
    assert story.core.kept


def test_mates_of_rank_0_end_if_its_script_has_ended(new_story, make_generation, sent):
    """The job has finished when all ranks of its worker have ended."""
    story = new_story(nproc=2).training_in(make_generation(1, "a", slots=2))
    for rank in (0, 1):
        story.finishes(rank=rank)
    assert not sent(story.says(Holds(), rank=1), Exit)
    assert [e.finished for e in sent(story.exits(rank=0), Exit)] == [True]
    only(story.exits(rank=1), End)


def test_a_killed_holder_starts_again_if_it_was_keeping_the_state(held):
    lose_rank_0(held)
    only(held.exits(signal=9), StartRanks)


def test_all_ranks_of_a_worker_start_again_if_they_found_rank_0_lost_before_they_had_ended(
    new_story, make_generation, make_member
):
    story = new_story(nproc=2)
    story.others = (make_member("b"),)
    story.training_in(make_generation(1, "b", "a", slots=2))
    none(story.says(Kept(why="rank 0 (b.x) was lost"), rank=0), KillRanks)
    only(story.says(Kept(why="rank 0 (b.x) was lost", holds=False), rank=1), KillRanks)
    assert story.core.kept, "one copy is enough"


def test_worker_that_leaves_holds_the_state_to_the_end_of_its_time_unless_another_does(held, sent, make_member):
    held.others = (make_member("b", Phase.FINISHED),)
    effects = held.event(Signalled(15))
    assert sent(effects, Exit) == [Exit(reason="asked to stop")], "b holds it too"
    only(held.exits(), End)


def test_worker_that_leaves_stays_if_it_is_the_last_to_hold_the_state(held, sent, make_member):
    held.others = (make_member("b"),)
    held.seen()
    effects = held.event(Signalled(15))
    assert not sent(effects, Exit)
    none(effects, KillRanks)
    effects = held.later(held.core.settings.drain_timeout + 1)
    only(effects, KillRanks)
    assert only(held.exits(signal=15), End).termination.outcome is Outcome.DRAINED
