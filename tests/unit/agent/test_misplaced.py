"""Ranks whose scripts are in another loop than the job: they go on in their processes, or start anew."""

from __future__ import annotations

import pytest

import builders
from effects import none, only
from elastrain.agent.core.events import End, JobSnapshot, KillRanks, Publish, Reincarnate, StartRanks
from elastrain.agent.core.restart import MAX_RESTARTS
from elastrain.api.loops import LoopId
from elastrain.api.messages import Broken, Hello, Locate, Located, Misplaced, Proposed, Ready, Welcome
from elastrain.api.records import Phase

BEHIND = Misplaced(why="the others are between two loops", ahead=False, member="a.x")


def at(story, end: int, training: bool = True):
    """The job is in the loop up to ``end``, in a generation without this member."""
    generation = builders.generation(3, "b.x", leader="b.x")
    return story.event(
        JobSnapshot(story.target, generation, step=end - 1, training=training, loop=LoopId(end), members={})
    )


def test_a_rank_receives_the_position_of_the_job_on_request(story, sent) -> None:
    story.started()
    story.says(Hello(local_rank=0, pid=7))
    assert sent(story.says(Locate()), Located) == [Located(step=0, training=False)]
    at(story, 100)
    assert sent(story.says(Locate()), Located) == [Located(step=99, training=True, loop=LoopId(100))]


@pytest.mark.parametrize(
    ("waits_until", "training", "told"),
    [
        (90, True, True),
        (100, True, False),  # the others are in the same loop
        (110, True, False),
        (90, False, False),  # no living member holds state: the loop is that of an earlier life
    ],
)
def test_a_rank_that_waits_is_told_if_the_job_has_left_its_loop(story, sent, waits_until, training, told) -> None:
    story.started()
    story.says(Hello(local_rank=0, pid=7))
    story.says(Ready(store_port=4000, loop=LoopId(waits_until)))
    assert bool(sent(at(story, 100, training), Located)) is told
    assert not sent(at(story, 100, training), Located), "it is told twice"
    assert bool(sent(at(story, 130, training), Located)) is training


def test_a_rank_that_trains_is_not_told(story, sent, make_generation) -> None:
    generation = make_generation(1, "a", "b")
    story.training_in(generation)
    effects = story.event(JobSnapshot(story.target, generation, step=99, training=True, loop=LoopId(100), members={}))
    assert not sent(effects, Located)


def test_a_rank_becomes_another_member_without_a_restart_if_it_is_behind(story, sent, make_generation) -> None:
    story.ready()
    story.sees(make_generation(1, "a", "b"))
    effects = story.says(BEHIND)
    assert only(effects, Reincarnate) == Reincarnate(restarts=False)
    none(effects, KillRanks, StartRanks)
    story.says(Broken(generation=1, step=0, error="the generation was given up"))
    effects = story.registered()
    assert [w.member for w in sent(effects, Welcome)] == ["a.x2"]
    assert [p.generation.number for p in sent(effects, Proposed)] == [1], "so that it knows the newest number"
    assert [e for e in story.log if isinstance(e, Publish)][-1].phase is not Phase.READY
    assert only(story.says(Ready(store_port=4000)), Publish).phase is Phase.READY


def test_all_ranks_of_the_worker_become_another_member_once(new_story, sent) -> None:
    story = new_story(nproc=2).ready()
    only(story.says(BEHIND, rank=1), Reincarnate)
    none(story.says(BEHIND, rank=0), Reincarnate)
    effects = story.registered()
    assert [w.member for w in sent(effects, Welcome)] == ["a.x2"] * 2
    none(story.says(BEHIND, rank=0), Reincarnate)  # said before it received the welcome


def test_ranks_restart_any_number_of_times_if_they_are_ahead(story) -> None:
    story.ready()
    for incarnation in range(2, MAX_RESTARTS + 4):
        effects = story.says(Misplaced(why="the script of rank 2 is in another loop"))
        only(effects, Reincarnate)
        assert "another loop" in only(effects, KillRanks).why
        assert only(story.exits(signal=9), StartRanks) == StartRanks(incarnation)
        story.registered()
        story.says(Hello(local_rank=0, pid=7))
        story.says(Ready(store_port=4000))
    none(story.log, End)
