"""As many epochs with a batch that follows the noise as with the script's: what the model has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrain.api.settings import BatchSettings, LearningRate

SCRIPT = Path(__file__).with_name("train_convergence.py")
EPOCHS = 12


def trained(world, rule: LearningRate | None) -> dict[str, Any]:
    batch = None if rule is None else BatchSettings(min=32, max=128, learning_rate=rule, least_ranks=1)
    world.start("a", epochs=EPOCHS, script=SCRIPT, batch=batch)
    world.ready("a")
    world.propose("a")
    return world.finished("a")["a"]


@pytest.mark.nightly
def test_digits_are_learned_in_a_third_of_the_updates_and_as_many_epochs(world, tmp_path_factory) -> None:
    """At the end a sample is worth 0.92 of one in the script's batch; at the beginning it is worth less."""
    fixed = trained(type(world)(tmp_path_factory.mktemp("fixed"), world.warm), None)
    chosen = trained(world, LearningRate.ADA_SCALE)
    assert sum(chosen["spans"]) == len(fixed["spans"]), "another number of samples"
    assert len(chosen["spans"]) < len(fixed["spans"]) / 2
    assert chosen["noise"] > 128
    assert chosen["loss"] < 1.5 * fixed["loss"]
    assert chosen["accuracy"] > fixed["accuracy"] - 0.02
