"""Forms of forward that scripts use: recomputed activations, compiled models, types of 16 bits."""

from pathlib import Path

import pytest

from differences import differences
from elastrain.data.audit import verify

SCRIPT = Path(__file__).with_name("train_forms.py")
EPOCHS = 4


@pytest.mark.parametrize(
    "mode",
    [
        "checkpoint",
        "checkpoint, reentrant",
        "compiled, then wrapped",
        "wrapped, then compiled",
        "eager, then compiled",
        "two forwards",
        "bf16",
        "fp16",
    ],
)
def test_result_is_that_of_one_rank_if_a_rank_joins_and_another_is_killed(world, tmp_path_factory, mode) -> None:
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
    assert expected["compiled"] == ("compiled" in mode)
    for result in final.values():
        apart = list(differences(expected, result, atol=0.0 if mode in ("bf16", "fp16") else 1e-10))
        assert not apart, "\n".join(apart[:20])
    assert verify(world.audit).ok
