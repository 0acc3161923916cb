"""What a rank adopts with a peer's state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from elastrain.api.settings import RankSettings
from elastrain.api.shape import ONE_RANK
from elastrain.elastic.assemble import world_for
from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.decide import Known
from elastrain.elastic.commit.step import Step
from elastrain.elastic.group.world import World
from elastrain.elastic.state import digest

REPLICAS = cast("Any", SimpleNamespace(votes=False, shape=ONE_RANK))


def alone(**tracked: Any) -> World:
    session = Mock(communicator=None)
    session.welcome.settings = RankSettings()
    return world_for(session, REPLICAS, tracked, CheckpointKeeper())


def commit(world: World, loss: float) -> None:
    sums = [0.0] * control.SIZE
    sums[control.LOSS] = loss
    step = Step(world.step, world.place, world.share, ())
    step.decide(Known(1, Summed(sums, ())))
    world.commit(step)


def test_the_loss_is_that_of_the_last_step_committed_by_a_peer():
    ahead, behind = alone(), alone()
    for world in (ahead, behind):
        commit(world, 2.5)
    commit(ahead, 1.25)
    behind.state.load(ahead.state.tree())
    assert behind.step == 2
    assert behind.state.reporter.loss == 1.25


def test_training_has_ended_for_a_rank_that_takes_over_the_last_step_from_a_peer():
    ahead, behind = alone(), alone()
    ahead.state.stopped = True
    behind.state.load(ahead.state.tree())
    assert behind.state.stopped


def test_callbacks_run_before_a_state_with_their_effects_is_adopted():
    seen = []

    class Counter:
        value = 0

        def state_dict(self) -> int:
            return self.value

        def load_state_dict(self, value: int) -> None:
            self.value = value

    there, here = Counter(), Counter()
    ahead, behind = alone(n=there), alone(n=here)
    commit(ahead, 2.5)
    there.value = 1  # its callback

    def call_back() -> None:
        here.value += 1
        seen.append((behind.step, behind.state.reporter.loss))

    behind.state.on_adopt = call_back
    behind.state.load(ahead.state.tree())
    assert seen == [(1, 2.5)]
    assert here.value == 1, "the callback has acted twice"


@pytest.mark.parametrize(("receiving", "fit"), [(True, False), (False, True)])
def test_a_step_is_lost_by_a_receiver_and_not_by_a_sender_if_the_transfer_breaks_off(receiving, fit):
    """All sums of the step were complete, so other ranks have committed it."""

    class BreaksOff:
        def __init__(self) -> None:
            self.receiving = receiving

        def before_update(self, communicator: SimpleNamespace) -> None:
            communicator.broken = "the joiner is gone"

    world, session = alone(), Mock(communicator=SimpleNamespace(broken=None))
    world._session = session
    world._handover = cast("Any", BreaksOff())
    assert world.before_update() is fit
    assert session.entered.called is fit, "only a rank that holds the state reports it"


def test_ranks_with_one_copy_give_an_agreed_switch_up_if_a_rank_was_lost_before_the_shards_moved():
    from elastrain.elastic.one_copy import OneCopy

    world, session, new = alone(), Mock(communicator=None), Mock(diverged=None, failure=None, unsent=None, generation=3)
    session.welcome.settings.max_redone_steps = 0
    world._session = session
    world._copies = OneCopy(session, Mock(), world.state, world.position)
    assert not world._hand_over(new)
    new.abort.assert_called_once()
    session.gave_up.assert_called_once_with(new, world.step, "a rank was lost before the shards moved")


def test_the_state_is_read_once_at_the_end_of_a_loop_in_which_replicas_are_compared(monkeypatch):
    model, read = nn.Linear(3, 3), []
    state, of_tensors = alone(model=model).state, digest.of_tensors
    monkeypatch.setattr(digest, "of_tensors", lambda tensors: read.extend(tensors) or of_tensors(tensors))
    state.replicas.number_at_boundary()
    assert len(read) == 2
    number = state.digest(anew=True)
    assert len(read) == 2
    assert number == state.digest(), "code after the loop has changed nothing"
    with torch.no_grad():
        model.bias.data += 1
    assert number != state.digest()
    state.replicas.begin_step(1, possible=True, holds=True)
    assert state.digest(anew=True) == state.digest(), "the comparison was that of an earlier state"
