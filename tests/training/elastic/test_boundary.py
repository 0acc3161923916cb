"""What a step boundary meets: the table of its acts, and joiners that meet it in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elastrain.elastic.boundary import Act, Boundary
from elastrain.elastic.pauses import Pauses
from elastrain_audit.judge import verify

SCRIPT = Path(__file__).with_name("train_boundary.py")


@pytest.mark.parametrize(
    ("boundary", "act", "due"),
    [
        (Boundary(0, 9), Act.STEP, ()),
        (Boundary(0, 9, pauses=(1,)), Act.STEP, ()),  # no step is committed
        (Boundary(4, 9, pauses=(3,)), Act.STEP, ()),
        (Boundary(4, 9, pauses=(4, 3, 2)), Act.PAUSE, (0, 2)),
        (Boundary(4, 9, pauses=(4, 3, 2), paused=3), Act.STEP, ()),
        (Boundary(4, 9, pauses=(4, 3, 2), paused=1), Act.PAUSE, (2,)),  # the others are younger than the last pause
        (Boundary(9, 9), Act.END, ()),
        (Boundary(9, 9, pauses=(3,)), Act.END, (0,)),
        (Boundary(9, 9, pauses=(3,), paused=1), Act.END, ()),
        (Boundary(9, 12, pauses=(3,), paused=1), Act.STEP, ()),  # the next loop
        (Boundary(4, 9, stopped=True, pauses=(3,)), Act.END, ()),
        (Boundary(4, 9, stopped=True, pauses=(2,)), Act.END, (0,)),
        (Boundary(12, 9), Act.END, ()),
    ],
)
def test_the_next_act_follows_from_what_all_ranks_have_in_common(boundary, act, due):
    assert (boundary.act, boundary.due) == (act, due)


def test_a_pause_has_had_its_turn_also_if_its_function_fails():
    pauses = Pauses()
    pauses.add(1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pauses.run([0])
    assert (pauses.served, pauses.running) == (1, False)


def train(world, *ranks: str, **env: str) -> None:
    world.start(*ranks, epochs=6, delay=0.02, script=SCRIPT, **env)
    world.ready(*ranks)


def ends_alike(world, *ranks: str) -> None:
    """All ranks end with the model of a run without events, and no sample was lost or repeated."""
    final = world.finished(*ranks)
    for rank in ranks:
        for key, value in final[rank]["model"].items():
            assert torch.allclose(value, final[rank]["expected"][key], rtol=0, atol=1e-10), (rank, key)
    assert verify(world.audit).ok


@pytest.mark.parametrize("every", ["1,1,3", *(pytest.param(e, marks=pytest.mark.nightly) for e in "12")])
def test_joiners_enter_a_job_that_pauses_after_steps(world, every):
    train(world, "a", "b", EVERY=every)
    world.propose("a", "b")
    world.progressed("a", 2)
    for joiner in "cd":
        train(world, joiner, EVERY=every)
        world.together(*world.ranks)
    ends_alike(world, *"abcd")
