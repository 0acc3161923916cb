"""``job.at()``: a change at a step reaches joiners and resumed jobs, once."""

from pathlib import Path

import pytest

from differences import differences
from elastrain.api.settings import CheckpointSpec

SCRIPT = Path(__file__).with_name("train_changes.py")
EPOCHS = 5
ALL = ["smooth", "unfreeze", "slow down", "restart"]


@pytest.fixture
def expected(world, tmp_path_factory) -> dict:
    """What one undisturbed rank saves."""
    fixed = type(world)(tmp_path_factory.mktemp("undisturbed"), world.warm)
    fixed.start("f", epochs=EPOCHS, script=SCRIPT)
    fixed.ready("f")
    fixed.propose("f")
    return fixed.finished("f")["f"]


def assert_same(result: dict, expected: dict) -> None:
    found = list(differences(expected, result, atol=1e-12))
    assert not found, "\n".join(found)
    assert result["made"] == ALL


def test_the_model_is_that_of_one_rank_if_a_rank_joins_behind_the_changes_and_another_is_killed(
    world, expected
) -> None:
    world.start("a", "b", epochs=EPOCHS, script=SCRIPT)
    world.ready("a", "b")
    world.propose("a", "b")
    world.progressed("a", 10)
    world.start("c", epochs=EPOCHS, script=SCRIPT)
    world.ready("c")
    world.propose("a", "b", "c")
    world.adopted("a", "b", "c")
    world.progressed("a", 2)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    world.propose("a", "c")
    world.adopted("a", "c")
    for result in world.finished("a", "c").values():
        assert_same(result, expected)


def test_the_model_is_that_of_one_rank_if_the_job_resumes_between_the_changes(world, expected) -> None:
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=7)
    world.start("a", epochs=EPOCHS, script=SCRIPT, checkpoint=spec)
    world.ready("a")
    world.propose("a")
    world.wait("a checkpoint", lambda: world.ranks["a"].saved_step() > 0)
    world.ranks["a"].kill()
    world.start("b", epochs=EPOCHS, script=SCRIPT, checkpoint=spec)
    world.ready("b")
    world.propose("b")
    assert_same(world.finished("b")["b"], expected)
