"""Several micro-batches per step, in real processes: the plain loop body trains as with one."""

import json
from pathlib import Path

import pytest
import torch

from elastrain_audit.judge import verify

SCRIPT = Path(__file__).parent / "train_options.py"
EPOCHS = 4


def start(world, *ranks: str, **loader: object) -> None:
    for rank in ranks:
        seed = str(len(world.ranks))
        world.start(rank, epochs=EPOCHS, delay=0.08, script=SCRIPT, LOADER=json.dumps(loader), SEED=seed, RANDOM="0")
    world.ready(*ranks)


def test_steps_are_those_of_whole_batches_if_they_come_in_micro_batches_and_ranks_leave_and_join(
    world, tmp_path_factory
) -> None:
    at_once = type(world)(tmp_path_factory.mktemp("at-once"), world.warm)
    start(at_once, "a")
    at_once.propose("a")
    expected = at_once.finished("a")["a"]

    start(world, "a", "b", "c", "d", micro_batch_size=3)
    world.propose("a", "b", "c")  # 8 samples each; of the last batch of an epoch 4, 4 and 3
    world.adopted("a", "b", "c")
    world.progressed("a", 4)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken") for r in "ac"))
    world.together("a", "c")
    world.progressed("a", 4)
    world.propose("a", "c", "d")  # a learner in its first step, without a backward
    final = world.finished("a", "c", "d")["a"]

    assert (final["largest"], expected["largest"]) == (3, 24)
    assert list(final["losses"]) == list(range(1, final["step"] + 1)), "a step was reported twice or not at all"
    assert final["losses"] == pytest.approx(expected["losses"]), "not the mean over the global batch"
    assert final["norms"] == pytest.approx(expected["norms"]), "not the norm of the averaged gradient"
    assert final["lr"] == expected["lr"], "the schedule saw another number of steps"
    for name, value in expected["model"].items():
        assert torch.allclose(final["model"][name], value, rtol=0, atol=1e-8), name
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert verdict.epochs == EPOCHS
