"""As much progress with a batch that follows the noise as with the script's: what the model has learned."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from elastrain.api.settings import BatchSettings, LearningRate

SCRIPT = Path(__file__).with_name("train_convergence.py")
UNTIL = 18_000
"""Ten epochs with the script's batch."""
SEEDS = (0, 1, 2)


def trained(world, rule: LearningRate | None, seed: int) -> dict[str, Any]:
    batch = None if rule is None else BatchSettings(min=32, max=256, learning_rate=rule, least_ranks=1)
    world.start("a", epochs=100, script=SCRIPT, batch=batch, UNTIL=str(UNTIL), SEED=str(seed))
    world.ready("a")
    world.propose("a")
    return world.finished("a")["a"]


@pytest.mark.nightly
def test_digits_are_learned_as_well_by_equal_progress_in_fewer_updates(world, tmp_path_factory) -> None:
    def runs(rule: LearningRate | None) -> list[dict[str, Any]]:
        fresh = (type(world)(tmp_path_factory.mktemp("world"), world.warm) for _ in SEEDS)
        return [trained(one, rule, seed) for one, seed in zip(fresh, SEEDS, strict=True)]

    fixed, chosen = runs(None), runs(LearningRate.ADA_SCALE)
    for run in (*fixed, *chosen):
        assert UNTIL <= run["effective"] <= UNTIL + 2 * 256
    assert all(len(run["spans"]) < 0.6 * len(fixed[0]["spans"]) for run in chosen)
    assert all(sum(run["spans"]) > len(fixed[0]["spans"]) for run in chosen), "as much progress takes more samples"
    spread = stdev([run["loss"] for run in fixed])
    assert fmean(run["loss"] for run in chosen) == pytest.approx(fmean(run["loss"] for run in fixed), abs=3 * spread)
