"""Samplers, and pairs of two data sets, in real processes: the same model and an exact audit, whatever happens."""

from pathlib import Path

import pytest
import torch

from elastrain_audit.judge import verify

SCRIPT = Path(__file__).parent / "train_options.py"
EPOCHS = 4


def start(world, sampler: str, *ranks: str) -> None:
    for rank in ranks:
        seed = str(len(world.ranks))
        world.start(rank, epochs=EPOCHS, delay=0.08, script=SCRIPT, LOADER="{}", SAMPLER=sampler, SEED=seed, RANDOM="0")
    world.ready(*ranks)


@pytest.mark.parametrize(
    ("sampler", "samples"),
    [
        pytest.param("buckets", 203, id="batches of different sizes", marks=pytest.mark.nightly),
        pytest.param("weighted", 150, id="with replacement", marks=pytest.mark.nightly),
        pytest.param("pairs", 203, id="two data sets in a step"),
    ],
)
def test_steps_are_those_of_one_rank_if_a_sampler_or_pairs_make_them_and_ranks_leave_and_join(
    world, tmp_path_factory, sampler, samples
) -> None:
    alone = type(world)(tmp_path_factory.mktemp("alone"), world.warm)
    start(alone, sampler, "a")
    alone.propose("a")
    expected = alone.finished("a")["a"]

    start(world, sampler, "a", "b", "c", "d")
    world.together("a", "b", "c")
    world.progressed("a", 4)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken") for r in "ac"))
    world.together("a", "c")
    world.progressed("a", 4)
    world.propose("a", "c", "d")
    final = world.finished("a", "c", "d")["a"]

    assert final["step"] == expected["step"]
    assert final["losses"] == pytest.approx(expected["losses"]), "not the mean over the global batch"
    for name, value in expected["model"].items():
        assert torch.allclose(final["model"][name], value, rtol=0, atol=1e-8), name
    for verdict in (verify(alone.audit), verify(world.audit)):
        assert verdict.ok, verdict
        assert (verdict.epochs, verdict.samples) == (EPOCHS, EPOCHS * samples)
