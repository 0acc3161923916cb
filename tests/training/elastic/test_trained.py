"""Parameters that begin to train later: the same ones on all ranks in every step, whatever joins or is lost."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from elastrain.data.audit import verify
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.state.trained import TrainedSet

SCRIPT = Path(__file__).with_name("train_unfreeze.py")
STEPS = 12
"""Of an epoch."""
BITWISE = {"NUMERICS": "bitwise", "LOADER": json.dumps({"micro_batches": 4})}
MICRO = {"LOADER": json.dumps({"micro_batch_size": 5})}


def start(world, *ranks: str, epochs: int = 4, delay: float = 0.05, **env: str) -> None:
    world.start(*ranks, epochs=epochs, delay=delay, script=SCRIPT, **env)
    world.ready(*ranks)


@pytest.fixture
def undisturbed(world, tmp_path_factory):
    """What a job of one rank ends with."""

    def run(**env: str) -> dict:
        fixed = type(world)(tmp_path_factory.mktemp("fixed"), world.warm)
        (fixed.folder / "run-free").touch()
        start(fixed, "f", **env)
        fixed.propose("f")
        return fixed.finished("f")["f"]

    return run


@contextmanager
def held(world) -> Iterator[None]:
    """No step is computed meanwhile: a joiner does not miss the loop."""
    (world.folder / "hold").touch()
    yield
    (world.folder / "hold").unlink()


def assert_same(final: dict, expected: dict, atol: float) -> None:
    assert final["step"] == expected["step"]
    assert [len(g["params"]) for g in final["optimizer"]["param_groups"]] == [2, 2]
    for name, value in expected["model"].items():
        torch.testing.assert_close(final["model"][name], value, rtol=0, atol=atol, msg=name)
    for index, kept in expected["optimizer"]["state"].items():
        for name, value in kept.items():
            torch.testing.assert_close(final["optimizer"]["state"][index][name], value, rtol=0, atol=atol)


@pytest.mark.parametrize("when", ["between", "body", "callback"])
@pytest.mark.parametrize("numerics", [{}, MICRO, BITWISE], ids=["exact", "micro-batches", "bitwise"])
def test_model_is_that_of_the_fixed_size_run_if_ranks_join_and_die_before_and_after_it_unfreezes(
    world, undisturbed, when, numerics
) -> None:
    env = {"WHEN": when, "AT": "2" if when == "between" else "24", **numerics}
    expected = undisturbed(**env)

    start(world, "a", "b", **env)
    world.propose("a", "b")
    world.adopted("a", "b")
    world.progressed("a", 3)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    start(world, "c", **env)
    world.propose("a", "c")
    world.adopted("a", "c")
    world.wait("it has unfrozen", lambda: world.ranks["a"].step() > 2 * STEPS + 1)
    with held(world):
        start(world, "e", **env)
        world.propose("a", "c", "e")
    world.adopted("a", "c", "e")
    world.progressed("a", 2)
    world.ranks["a"].kill()
    world.wait("the loss is reported", lambda: world.ranks["c"].has("broken", generation=world.number))
    world.propose("c", "e")
    final = world.finished("c", "e")
    for rank in "ce":
        assert_same(final[rank], expected, 0.0 if numerics is BITWISE else 1e-10)
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert verdict.redone == 0
