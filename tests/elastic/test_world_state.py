"""What a rank takes over with the state of a peer, and what the others compute meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from elastrain.data.order import Order
from elastrain.elastic.world import World, _Row, _shares


def alone() -> World:
    return World(cast("Any", None), {}, spec=None, volume=None)


def test_the_loss_is_that_of_the_last_committed_step_if_a_peer_committed_it():
    ahead, behind = alone(), alone()
    for world in (ahead, behind):
        world.commit(Order(10, 5), None, 2.5, None)
    ahead.commit(Order(10, 5), None, 1.25, None)
    behind._load(ahead._tree())
    assert behind.step == 2
    assert behind.loss == 1.25


HOLDER = _Row(step=7, size=2, reached=7, layout=1, structure=5, in_passing=1)
JOINER = _Row(step=-1, size=1, reached=7, layout=1, structure=0, in_passing=1)


def test_joiners_look_on_if_those_who_hold_the_state_can_compute_as_they_did():
    shares = _shares([HOLDER, JOINER, HOLDER, JOINER], [0, 2], [1, 3])
    assert shares == {0: (0, 2), 2: (1, 2), 1: (2, 2), 3: (2, 2)}


@pytest.mark.parametrize(
    ("table", "behind"),
    [
        ([HOLDER, HOLDER], []),
        ([replace(HOLDER, size=3), replace(HOLDER, size=3), JOINER], [2]),  # one was lost: their parts would grow
        ([HOLDER, HOLDER, replace(JOINER, in_passing=0)], [2]),
        ([HOLDER, HOLDER, replace(JOINER, layout=2)], [2]),
        ([replace(HOLDER, layout=0), replace(HOLDER, layout=0), replace(JOINER, layout=0)], [2]),
        ([replace(JOINER, size=1), JOINER], [1]),  # nobody holds any state
    ],
)
def test_every_rank_computes_its_part_of_the_first_step_if_not(table, behind):
    assert _shares(table, [0], behind) == {}
