"""The same number of epochs ends at the same loss with a batch that follows the noise as with the script's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrain.api.settings import BatchSettings, LearningRate

SCRIPT = Path(__file__).with_name("train_convergence.py")
TASKS = {
    "digits": (LearningRate.ADA_SCALE, 20),
    "characters": (LearningRate.SQUARE_ROOT, 12),
}


def trained(world, rule: LearningRate | None, task: str, epochs: int) -> dict[str, Any]:
    batch = None if rule is None else BatchSettings(min=16, max=128, learning_rate=rule, least_ranks=1)
    world.start("a", "b", epochs=epochs, script=SCRIPT, batch=batch, TASK=task)
    world.ready("a", "b")
    world.propose("a", "b")
    return world.finished("a", "b")["a"]


@pytest.mark.nightly
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_after_as_many_epochs_is_the_same_if_the_batch_is_chosen(world, tmp_path_factory, task) -> None:
    rule, epochs = TASKS[task]
    fixed = trained(type(world)(tmp_path_factory.mktemp("fixed"), world.warm), None, task, epochs)
    chosen = trained(world, rule, task, epochs)
    for name, end in (("script's", fixed), ("chosen", chosen)):
        steps, mean = len(end["spans"]), sum(end["spans"]) / len(end["spans"]) * 16
        print(
            f"| {task} | {name} | {steps} | {mean:.0f} | {max(end['spans']) * 16} | {end['loss']:.4f} | "
            f"{end['accuracy']:.4f} | {end['seconds']:.1f} | {end['noise']}"
        )
    assert sum(chosen["spans"]) == len(fixed["spans"]), "another number of samples"
    assert max(chosen["spans"]) > 1
    assert len(chosen["spans"]) < len(fixed["spans"])
    assert chosen["loss"] <= 1.1 * fixed["loss"] + 0.02
    assert chosen["accuracy"] >= fixed["accuracy"] - 0.01
