"""Forms of forward that scripts use: recomputed activations, compiled models, types of 16 bits."""

from pathlib import Path

import pytest

from differences import differences
from elastrain_audit.judge import verify
from joined_and_killed import join_and_kill, undisturbed

SCRIPT = Path(__file__).with_name("train_forms.py")
EPOCHS = 4
FURTHER = (
    "checkpoint",
    "eager, then compiled",
    "compiled, then wrapped",
    "wrapped, then compiled",
    "two forwards",
    "bf16",
)


@pytest.mark.parametrize(
    "mode",
    [
        "checkpoint, reentrant",
        "fp16",
        *(pytest.param(mode, marks=pytest.mark.nightly) for mode in FURTHER),
    ],
)
def test_result_is_that_of_one_rank_if_a_rank_joins_and_another_is_killed(world, tmp_path_factory, mode) -> None:
    final = join_and_kill(world, epochs=EPOCHS, script=SCRIPT, MODE=mode)
    alone = tmp_path_factory.mktemp("undisturbed")
    expected = undisturbed(world, alone, epochs=EPOCHS, script=SCRIPT, MODE=mode)
    assert expected["compiled"] == ("compiled" in mode)
    for result in final.values():
        apart = list(differences(expected, result, atol=0.0 if mode in ("bf16", "fp16") else 1e-10))
        assert not apart, "\n".join(apart[:20])
    assert verify(world.audit).ok
