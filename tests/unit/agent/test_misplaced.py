"""Ranks whose scripts are in another loop than the job start anew, which counts as no failure."""

from __future__ import annotations

import pytest

import builders
from effects import none, only
from elastrain.agent.core.events import End, JobSnapshot, KillRanks, Reincarnate, StartRanks
from elastrain.agent.core.misplaced import PAUSE_SECONDS, why_misplaced
from elastrain.agent.core.rank import Rank
from elastrain.agent.core.restart import MAX_RESTARTS
from elastrain.api.messages import Adopted, Hello, Locate, Located, Misplaced, Ready
from elastrain.api.records import Member, Phase

HOLDER = Member(id="b.x", worker="b", address="10.0.0.2", phase=Phase.READY, generation=3)
JOINER = HOLDER.model_copy(update={"generation": 0})


def waiting(loop_end: int) -> Rank:
    rank = Rank(0)
    for message in (Hello(local_rank=0, pid=7), Ready(store_port=4000, loop_end=loop_end)):
        rank.received(message)
    return rank


def at(step: int, member: Member = HOLDER) -> JobSnapshot:
    return JobSnapshot(generation=builders.generation(3, "b"), step=step, members={member.id: member})


@pytest.mark.parametrize(
    ("loop_end", "seen", "misplaced"),
    [
        (100, at(101), True),
        (100, at(100), False),  # the others may still be in the loop
        (0, at(101), False),  # it has not said where it waits
        (100, at(101, JOINER), False),  # no living member holds state: the step is that of an earlier life
        (100, None, False),
    ],
)
def test_a_rank_that_stands_by_is_misplaced_if_the_job_has_left_its_loop(loop_end, seen, misplaced) -> None:
    assert bool(why_misplaced([waiting(loop_end)], seen)) is misplaced


def test_a_spare_rank_restarts_once_a_minute_if_epochs_are_short() -> None:
    assert not why_misplaced([waiting(100)], at(101), since=PAUSE_SECONDS - 1)
    assert why_misplaced([waiting(100)], at(101), since=PAUSE_SECONDS)


def test_a_rank_that_trains_is_not_misplaced() -> None:
    rank = waiting(100)
    rank.received(Adopted(generation=3, step=90))
    assert not why_misplaced([rank], at(101))


def test_a_rank_receives_the_position_of_the_job_on_request(story, sent) -> None:
    story.started()
    story.says(Hello(local_rank=0, pid=7))
    assert sent(story.says(Locate()), Located) == [Located(step=0, training=False)]


def test_ranks_restart_any_number_of_times_if_they_are_misplaced(story) -> None:
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
