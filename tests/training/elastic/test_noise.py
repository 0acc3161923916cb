"""Randomness in updates is the same on all ranks and at any number of them; that of samples is each rank's own."""

from pathlib import Path

import pytest
import torch

from differences import differences
from elastrain.data.audit import verify

SCRIPT = Path(__file__).with_name("train_noise.py")
EPOCHS = 6


@pytest.mark.parametrize(
    "mode", ["micro-batches", "several", *(pytest.param(m, marks=pytest.mark.nightly) for m in ("whole", "closure"))]
)
def test_noise_in_the_update_is_that_of_one_rank_if_a_rank_joins_and_another_is_killed(
    world, tmp_path_factory, mode
) -> None:
    world.start("a", "b", epochs=EPOCHS, script=SCRIPT, MODE=mode)
    world.ready("a", "b")
    world.propose("a", "b")
    world.adopted("a", "b")
    world.progressed("a", 2)
    world.start("c", epochs=EPOCHS, script=SCRIPT, MODE=mode)
    world.ready("c")
    world.propose("a", "b", "c")
    world.adopted("a", "b", "c")
    world.progressed("a", 2)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    world.propose("a", "c")
    world.adopted("a", "c")
    final = world.finished("a", "c")

    fixed = type(world)(tmp_path_factory.mktemp("undisturbed"), world.warm)
    fixed.start("f", epochs=EPOCHS, script=SCRIPT, MODE=mode)
    fixed.ready("f")
    fixed.propose("f")
    expected = fixed.finished("f")["f"]
    own = {"drawn": None}
    for result in final.values():
        apart = list(differences({**expected, **own}, {**result, **own}, atol=1e-12))
        assert not apart, "\n".join(apart[:20])
    assert verify(world.audit).ok
    if mode == "several":
        one, other = final["a"]["drawn"], final["c"]["drawn"]
        both = [number for number in one if number in other][-6:]
        assert not any(torch.equal(one[number], other[number]) for number in both), "ranks draw the same samples"
