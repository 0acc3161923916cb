"""``numerics="bitwise"``, in real processes: any history of rescales gives the same bits."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elastrain_bitwise.strategy import make_deterministic

SCRIPT = Path(__file__).parent / "train_options.py"
VICTIM = Path(__file__).parent / "train_victim.py"


@pytest.fixture
def alone(world, tmp_path_factory) -> Iterator:
    """Another world, for the run of fixed size."""
    other = type(world)(tmp_path_factory.mktemp("alone"), world.warm)
    yield other
    for rank in other.ranks.values():
        rank.stop()


def start(
    world, *ranks: str, epochs: int = 8, script: Path = SCRIPT, env: dict[str, str] | None = None, **loader: object
) -> None:
    options = {"LOADER": json.dumps({"micro_batches": 8, **loader}), "NUMERICS": "bitwise", "RANDOM": "1"}
    for rank in ranks:
        # All ranks get the first rank's weights; other random draws of a rank must not matter.
        seed = str(len(world.ranks))
        world.start(rank, epochs=epochs, delay=0.08, script=script, SEED=seed, **options, **(env or {}))
    world.ready(*ranks)


def assert_same_bits(a: dict, b: dict) -> None:
    assert a["losses"] == b["losses"]
    assert a["norms"] == b["norms"]
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name


@pytest.mark.timeout(300)  # six processes that import torch, on a busy machine
def test_bits_are_those_of_the_fixed_size_run_if_the_world_grows_loses_a_rank_and_shrinks(
    world, tmp_path_factory
) -> None:
    worlds = {size: type(world)(tmp_path_factory.mktemp(f"fixed-{size}"), world.warm) for size in (1, 2)}
    results = {}
    for size, fixed in worlds.items():
        ranks = "ab"[:size]
        start(fixed, *ranks)
        fixed.propose(*ranks)
        results[size] = fixed.finished(*ranks)["a"]
    assert_same_bits(results[1], results[2])

    start(world, "a", "b")
    start(world, "c", num_workers=1)
    world.together("a", "b")
    world.progressed("a", 3)
    world.together("a", "b", "c")
    world.progressed("a", 3)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken") for r in "ac"))
    world.together("a", "c")
    world.progressed("a", 3)
    world.together("a")
    final = world.finished("a")["a"]

    assert final["step"] == 72
    assert_same_bits(final, results[1])


@pytest.mark.timeout(300)  # four processes that import torch, on a busy machine
def test_survivors_continue_with_the_same_bits_if_a_rank_is_killed_in_the_middle_of_a_message(world, alone) -> None:
    wide = {"WIDTH": "20000"}
    start(alone, "a", epochs=2, env=wide)
    alone.propose("a")
    expected = alone.finished("a")["a"]

    start(world, "a", "b", epochs=2, env=wide)
    # With three ranks and eight micro-batches the third receives four parts of nodes and two of sums in each step, a
    # third of the 200,004 numbers each: 1.6 MB. It dies in the sixth step, before it can have sent a sum.
    start(world, "c", epochs=2, script=VICTIM, env={**wide, "DIE_AFTER": "8500000"})
    world.propose("a", "b", "c")
    world.wait("c kills itself", lambda: world.ranks["c"].process.poll() is not None)
    # They learn it from their own connections only.
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken", step=5) for r in "ab"))
    world.together("a", "b")
    survivors = world.finished("a", "b")

    assert expected["step"] == 18
    for survivor in survivors.values():
        assert survivor["step"] == 18
        assert_same_bits(survivor, expected)


@pytest.mark.parametrize(("own", "then"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_cublas_gets_a_fixed_workspace_unless_the_user_has_chosen_one(monkeypatch, own: str | None, then: str) -> None:
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda _: None)
    for owner, name in [(torch.backends.cudnn, "benchmark"), (torch.utils.deterministic, "fill_uninitialized_memory")]:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", own or "")
    if own is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    make_deterministic()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == then
