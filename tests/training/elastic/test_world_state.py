"""What a rank adopts with a peer's state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.membership.world import World

REPLICAS = cast("Any", SimpleNamespace(votes=False, tensor=1))


def alone() -> World:
    return World(cast("Any", None), REPLICAS, {}, CheckpointKeeper())


def test_the_loss_is_that_of_the_last_step_committed_by_a_peer():
    ahead, behind = alone(), alone()
    for world in (ahead, behind):
        world.commit(2.5, 1, None)
    ahead.commit(1.25, 1, None)
    behind._load(ahead._tree())
    assert behind.step == 2
    assert behind.loss == 1.25


def test_training_has_ended_for_a_rank_that_takes_over_the_last_step_from_a_peer():
    ahead, behind = alone(), alone()
    ahead.stopped = True
    behind._load(ahead._tree())
    assert behind.stopped


def test_callbacks_run_before_a_state_with_their_effects_is_adopted():
    seen = []

    class Counter:
        value = 0

        def state_dict(self) -> int:
            return self.value

        def load_state_dict(self, value: int) -> None:
            self.value = value

    ahead, behind = (World(cast("Any", None), REPLICAS, {"n": Counter()}, CheckpointKeeper()) for _ in "ab")
    ahead.commit(2.5, 1, None)
    ahead._tracked["n"].value = 1  # its callback
    counter = cast("Counter", behind._tracked["n"])

    def call_back() -> None:
        counter.value += 1
        seen.append((behind.step, behind.loss))

    behind.on_adopt = call_back
    behind._load(ahead._tree())
    assert seen == [(1, 2.5)]
    assert counter.value == 1, "the callback has acted twice"


@pytest.mark.parametrize(("receiving", "fit"), [(True, False), (False, True)])
def test_a_step_is_lost_by_a_receiver_and_not_by_a_sender_if_the_transfer_breaks_off(receiving, fit):
    """All sums of the step were complete, so other ranks have committed it."""

    class BreaksOff:
        def __init__(self) -> None:
            self.receiving = receiving

        def before_update(self, communicator: SimpleNamespace) -> None:
            communicator.broken = "the joiner is gone"

    world = alone()
    said: list[bool] = []
    world._session = cast("Any", SimpleNamespace(adopt=lambda number, step: said.append(True)))
    world.communicator = cast("Any", SimpleNamespace(broken=None))
    world._handover = cast("Any", BreaksOff())
    assert world.before_update() is fit
    assert bool(said) is fit, "only a rank that holds the state reports it"
