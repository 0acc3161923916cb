"""``numerics="bitwise"``, in real processes: any history of rescales gives the same bits."""

import json
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "train_options.py"


def start(world, *ranks: str, **loader: object) -> None:
    options = {"LOADER": json.dumps({"micro_batches": 8, **loader}), "NUMERICS": "bitwise", "RANDOM": "1"}
    for rank in ranks:
        # The first rank's weights are those of all; whatever else a rank draws by itself must not matter.
        world.start(rank, epochs=8, delay=0.08, script=SCRIPT, SEED=str(len(world.ranks)), **options)
    world.ready(*ranks)


def assert_same_bits(a: dict, b: dict) -> None:
    assert a["losses"] == b["losses"]
    assert a["norms"] == b["norms"]
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name


@pytest.mark.slow
@pytest.mark.timeout(300)  # six processes that import torch, on a busy machine
def test_bits_are_those_of_the_fixed_size_run_if_the_world_grows_loses_a_rank_and_shrinks(
    world, tmp_path_factory
) -> None:
    worlds = {size: type(world)(tmp_path_factory.mktemp(f"fixed-{size}")) for size in (1, 2)}
    results = {}
    for size, fixed in worlds.items():
        ranks = "ab"[:size]
        start(fixed, *ranks)
        fixed.propose(*ranks)
        results[size] = fixed.finished(*ranks)["a"]
    assert_same_bits(results[1], results[2])

    start(world, "a", "b")
    start(world, "c", num_workers=1)
    world.propose("a", "b")
    world.adopted("a", "b")
    world.progressed("a", 3)
    world.propose("a", "b", "c")
    world.adopted("a", "b", "c")
    world.progressed("a", 3)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken") for r in "ac"))
    world.propose("a", "c")
    world.adopted("a", "c")
    world.progressed("a", 3)
    world.propose("a")
    world.adopted("a")
    final = world.finished("a")["a"]

    assert final["step"] == 72
    assert_same_bits(final, results[1])
