"""A killed rank starts again alone: the other ranks of its worker keep their processes, and stand by."""

from __future__ import annotations

import pytest

from effects import none, only
from elastrain.agent.core.bounds import STAND_BY_SECONDS
from elastrain.agent.core.events import End, KillRanks, Publish, RankHungUp, Reincarnate, StartRanks
from elastrain.agent.core.restart import MAX_RESTARTS
from elastrain.api.messages import Adopted, Broken, Exit, Finished, Hello, Ready, Welcome
from elastrain.api.records import Phase


@pytest.fixture
def story(new_story, make_generation):
    """A worker of two ranks, which train."""
    story = new_story(nproc=2).started()
    for rank in range(2):
        story.says(Hello(local_rank=rank, pid=1000 + rank, stays=True), rank)
        story.says(Ready(store_port=4000), rank)
    story.sees(make_generation(1, "a", slots=2))
    for rank in range(2):
        story.adopts(1, rank=rank)
    return story


def returns(story, rank: int) -> list:
    """The restarted rank is ready."""
    effects = story.says(Hello(local_rank=rank, pid=2000 + rank, stays=True), rank)
    return effects + story.says(Ready(store_port=4001), rank)


def test_only_the_killed_rank_starts_again_if_the_other_can_stay(story, sent) -> None:
    assert story.exits(signal=9, rank=1) == [Reincarnate(), StartRanks(1, (1,))]
    effects = story.registered()
    (welcome,) = sent(effects, Welcome)
    assert welcome.member == "a.x2"
    assert only(effects, Publish).phase is Phase.WARMING
    none(returns(story, 1), Publish)  # the other has not answered yet
    assert only(story.says(Ready(store_port=4000), 0), Publish).phase is Phase.READY


def test_the_new_member_holds_the_state_that_the_other_rank_has_kept(story) -> None:
    story.exits(signal=9, rank=1)
    assert only(story.registered(), Publish).holds


def test_the_new_member_holds_no_whole_state_if_the_lost_rank_held_a_part_of_it(story) -> None:
    settings = story.core.settings
    story.core.settings = settings.model_copy(update={"written": settings.written.model_copy(update={"shards": 2})})
    story.exits(signal=9, rank=1)
    assert not any(e.holds for e in story.registered() if isinstance(e, Publish))


def test_messages_of_the_former_member_do_not_count(story) -> None:
    story.exits(signal=9, rank=1)
    story.registered()
    none(story.breaks(1, rank=0), Publish)
    none(story.adopts(1, rank=0), Publish)
    assert story.core.ranks[0].broken == story.core.ranks[0].adopted == 0


def test_all_ranks_start_anew_if_the_killed_one_is_not_ready_in_time(story) -> None:
    story.exits(signal=9, rank=1)
    story.registered()
    story.says(Ready(store_port=4000), 0)
    none(story.later(STAND_BY_SECONDS - 1), KillRanks)
    assert "local ranks [1] were not ready 600 s after" in only(story.later(1), KillRanks).why
    story.exits(signal=9, rank=0)
    assert only(story.exits(signal=9, rank=1), StartRanks) == StartRanks(2)


def test_ranks_that_are_ready_are_not_bounded(story) -> None:
    story.exits(signal=9, rank=1)
    story.registered()
    returns(story, 1)
    story.says(Ready(store_port=4000), 0)
    none(story.later(2 * STAND_BY_SECONDS), KillRanks)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_death_of_the_same_cause_counts_once(story, rank) -> None:
    story.exits(signal=9, rank=rank)
    assert only(story.exits(signal=9, rank=1 - rank), StartRanks).local_ranks == (1 - rank,)
    assert len(story.core.restarts) == 1


def test_the_worker_fails_if_one_rank_is_killed_repeatedly(story) -> None:
    for _ in range(MAX_RESTARTS):
        none(story.exits(signal=9, rank=1), End)
        story.registered()
        story.says(Ready(store_port=4000), 0)
        returns(story, 1)
    story.exits(signal=9, rank=1)
    assert only(story.exits(signal=9, rank=0), End).termination.reason == "RankKilled"


@pytest.mark.parametrize("how", ["finished", "hung up", "told to exit", "cannot stay"])
def test_all_ranks_start_anew_if_the_other_cannot_stay(story, how) -> None:
    match how:
        case "finished":
            story.says(Finished(step=10), 0)
        case "hung up":
            story.event(RankHungUp(1, 0))
        case "told to exit":
            story.sees(finished=True)
            story.breaks(1, rank=0)
            story.breaks(1, rank=1)
            assert any(isinstance(getattr(e, "message", None), Exit) for e in story.log)
        case "cannot stay":
            story.says(Hello(local_rank=0, pid=7), 0)
    effects = story.exits(signal=9, rank=1)
    assert Reincarnate() in effects and any(isinstance(e, KillRanks) for e in effects)


def test_all_ranks_start_anew_if_the_other_ends_meanwhile(story) -> None:
    story.exits(signal=9, rank=1)
    story.registered()
    assert "a rank has ended, and local ranks" in only(story.says(Finished(step=10), 0), KillRanks).why


def test_both_ranks_train_again_if_a_generation_includes_the_new_member(story, make_generation) -> None:
    story.exits(signal=9, rank=1)
    story.registered()
    returns(story, 1)
    story.says(Ready(store_port=4000), 0)
    generation = make_generation(2, "a", slots=2)
    place = generation.members[0].model_copy(update={"id": "a.x2"})
    story.sees(generation.model_copy(update={"members": (place,)}))
    story.says(Adopted(generation=2, step=10), 1)
    assert only(story.says(Adopted(generation=2, step=10), 0), Publish).generation == 2
    assert only(story.says(Broken(generation=2, step=11, error="reset"), 0), Publish).broken == 2
