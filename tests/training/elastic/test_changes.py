"""``job.at()``: a change at a step reaches joiners and resumed jobs, once."""

from pathlib import Path

import pytest

from differences import differences
from elastrain.api.settings import CheckpointSpec
from joined_and_killed import join_and_kill, undisturbed

SCRIPT = Path(__file__).with_name("train_changes.py")
EPOCHS = 5
ALL = ["smooth", "unfreeze", "slow down", "restart"]


@pytest.fixture
def expected(world, tmp_path_factory) -> dict:
    """What one undisturbed rank saves."""
    return undisturbed(world, tmp_path_factory.mktemp("undisturbed"), epochs=EPOCHS, script=SCRIPT)


def assert_same(result: dict, expected: dict) -> None:
    found = list(differences(expected, result, atol=1e-12))
    assert not found, "\n".join(found)
    assert result["made"] == ALL


def test_the_model_is_that_of_one_rank_if_a_rank_joins_behind_the_changes_and_another_is_killed(
    world, expected
) -> None:
    final = join_and_kill(world, steps=10, epochs=EPOCHS, script=SCRIPT)
    for result in final.values():
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
