"""Which member's script does what is done once after the loops, and when it was lost before it had done so."""

from __future__ import annotations

import pytest

import builders
from elastrain.api.records import Generation
from elastrain.elastic.group.ending import Once, RankZeroLost


def generation(number: int, *workers: str) -> Generation:
    return builders.generation(number, *(f"{w}.x" for w in workers), leader="a.x")


FIRST, WITHOUT = generation(1, "a", "b", "c"), generation(2, "b", "c")


@pytest.fixture
def once() -> Once:
    """Of a rank whose last loop ended in :data:`FIRST`."""
    once = Once()
    once.enters(FIRST, agreed=False, calls=0)
    once.begins(FIRST)
    return once


def lost(once: Once, generation: Generation) -> bool:
    once.ends = True
    try:
        once.check(generation)
    except RankZeroLost:
        return True
    return False


def test_script_ends_if_rank_0_is_there(once) -> None:
    assert not lost(once, generation(2, "a", "c")), "another was lost"


def test_rank_0_is_lost_if_the_next_generation_lacks_it(once) -> None:
    assert lost(once, WITHOUT)


def test_rank_0_is_lost_if_it_was_lost_before_a_call_that_the_others_made(once) -> None:
    once.enters(WITHOUT, agreed=False, calls=1)
    assert lost(once, WITHOUT), "it may have been at work before that call"


def test_the_next_rank_goes_on_if_rank_0_is_lost_in_a_call_that_has_exchanged_results(once) -> None:
    once.under_way = True
    once.enters(WITHOUT, agreed=False, calls=2)
    assert not lost(once, WITHOUT)


def test_the_next_rank_goes_on_if_rank_0_has_left_as_agreed(once) -> None:
    once.enters(WITHOUT, agreed=True, calls=2)
    assert not lost(once, WITHOUT)


def test_the_next_rank_goes_on_if_rank_0_was_lost_in_a_step(once) -> None:
    once.enters(WITHOUT, agreed=False, calls=0)
    once.begins(WITHOUT)
    assert not lost(once, WITHOUT)
