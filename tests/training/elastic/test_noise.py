"""Randomness in updates is the same on all ranks and at any number of them; that of samples is each rank's own."""

from pathlib import Path

import pytest
import torch

from differences import differences
from elastrain_audit.judge import verify
from joined_and_killed import join_and_kill, undisturbed

SCRIPT = Path(__file__).with_name("train_noise.py")
EPOCHS = 6


@pytest.mark.parametrize(
    "mode", ["several", *(pytest.param(m, marks=pytest.mark.nightly) for m in ("micro-batches", "whole", "closure"))]
)
def test_noise_in_the_update_is_that_of_one_rank_if_a_rank_joins_and_another_is_killed(
    world, tmp_path_factory, mode
) -> None:
    final = join_and_kill(world, epochs=EPOCHS, script=SCRIPT, MODE=mode)
    alone = tmp_path_factory.mktemp("undisturbed")
    expected = undisturbed(world, alone, epochs=EPOCHS, script=SCRIPT, MODE=mode)
    own = {"drawn": None}
    for result in final.values():
        apart = list(differences({**expected, **own}, {**result, **own}, atol=1e-12))
        assert not apart, "\n".join(apart[:20])
    assert verify(world.audit).ok
    if mode == "several":
        one, other = final["a"]["drawn"], final["c"]["drawn"]
        both = [number for number in one if number in other][-6:]
        assert not any(torch.equal(one[number], other[number]) for number in both), "ranks draw the same samples"
