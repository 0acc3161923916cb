"""Durable checkpoints beside training: their content, and when they are written."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from elastrain.api import names
from elastrain.api.job import CheckpointSpec
from elastrain.api.shape import Shape
from elastrain.elastic.checkpoint import Checkpoint, CheckpointKeeper, Cut, Grid, KeptState, Level, Writers
from elastrain.elastic.state import capture


class SlowVolume:
    """Records a save, and ends it when the test permits."""

    name, where = "volume", "/checkpoints"

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.trees: list[Any] = []

    def save(self, tree: Any, *, step: int, generation: int, lineage: str, pace: Any = None, **_: Any) -> Checkpoint:
        self.trees.append(tree)
        assert self.may_end.wait(30) or pace is None
        return Checkpoint(step, generation, lineage, self.where)


@pytest.fixture
def volume() -> SlowVolume:
    return SlowVolume()


@pytest.fixture
def keeper(volume) -> CheckpointKeeper:
    return CheckpointKeeper([Level(volume, CheckpointSpec(path="/checkpoints", everySteps=10))])


def save(keeper: CheckpointKeeper, step: int, tree: Any) -> None:
    keeper.after_step(step, 1, lambda: tree)


def ended(keeper: CheckpointKeeper) -> None:
    keeper._levels[0].join(30)
    assert not keeper._levels[0].busy


def test_a_rank_that_ends_waits_for_its_running_save_up_to_a_bound(keeper, volume) -> None:
    keeper.finish()  # without a save it does not wait
    save(keeper, 10, {})
    keeper.finish(seconds=0.05)
    assert keeper._levels[0].busy, "the bound has passed"
    threading.Timer(0.2, volume.may_end.set).start()
    keeper.finish()
    assert keeper.result.step == 10


def test_the_saved_state_is_that_of_the_step_if_training_continues(keeper, volume) -> None:
    weights = torch.ones(3)
    save(keeper, 10, {"weights": weights, "step": 10})
    weights += 1
    volume.may_end.set()
    ended(keeper)
    assert volume.trees[0]["weights"].tolist() == [1, 1, 1]
    assert keeper.result.step == 10


def test_no_save_begins_while_another_one_runs(keeper, volume) -> None:
    save(keeper, 10, {"weights": torch.ones(3)})
    save(keeper, 20, {"weights": torch.ones(3)})
    volume.may_end.set()
    ended(keeper)
    save(keeper, 30, {"weights": torch.ones(3)})
    ended(keeper)
    assert len(volume.trees) == 2


def test_the_copy_s_memory_is_reused_until_another_rank_is_rank_0(keeper, volume) -> None:
    volume.may_end.set()
    places = []
    for step in (10, 20, 30):
        save(keeper, step, {"weights": torch.full((3,), float(step))})
        ended(keeper)
        places.append(volume.trees[-1]["weights"].data_ptr())
        assert volume.trees[-1]["weights"].tolist() == [step] * 3
        if step == 20:
            keeper.forget()
    assert places[0] == places[1] != places[2]


def test_a_running_save_is_hurried_if_the_state_must_be_saved_now(keeper, volume) -> None:
    save(keeper, 10, {"weights": torch.ones(3)})
    pace = keeper._levels[0].pace
    end = threading.Thread(target=lambda: pace._hurry.wait(30) and volume.may_end.set())
    end.start()
    keeper.save_now(12, 1, lambda: {"weights": torch.ones(3)})
    end.join()
    assert keeper.result.step == 12


@pytest.mark.parametrize("save", ["save_now", "keep"])
def test_an_error_of_the_script_s_own_state_is_raised_in_the_script(keeper, volume, tmp_path, save) -> None:
    def fails() -> Any:
        raise KeyError("ema")

    kept = CheckpointKeeper(keeper._levels, KeptState(tmp_path))
    with pytest.raises(KeyError, match="ema"):
        getattr(kept, save)(12, 1, fails)
    assert kept.result is None and volume.trees == []


def test_the_next_process_finds_the_kept_state_of_its_shard_until_nothing_can_continue_from_it(tmp_path) -> None:
    environment = {names.ENV_JOB_UID: tmp_path.name, names.ENV_WORKER: "a"}
    kept, shape = KeptState(tmp_path / "a"), Shape.flat(2)
    cuts = [Cut(Grid(shard, shape)) for shard in range(2)]
    assert kept.save({"w": torch.ones(3)}, 7, 1, "", Writers((1, 1), 1, shape=shape))
    assert [found.step for found in [KeptState(tmp_path / "a").newest()] if found] == [7]
    assert kept.load(cuts[0]) is None
    assert kept.load(cuts[1])["w"].tolist() == [1, 1, 1]
    kept.drop()
    assert kept.load(cuts[1]) is None and kept.newest() is None
    assert KeptState.of(environment, "all").save({}, 7, 1, "", Writers()) is False, "a part is lost with any rank"


def test_a_tensor_has_new_memory_if_it_does_not_fit_the_old_one() -> None:
    shapes = {"a": (2,), "b": (2, 2), "c": (2,), "d": (2,), "f": (2, 3)}
    first = capture.copied({"e": 1, **{name: torch.zeros(shape) for name, shape in shapes.items()}})
    after = {
        "a": torch.ones(3), "b": torch.ones(2, 2), "c": torch.ones(2).double(), "d": [torch.ones(2)], "e": 2,
        "f": torch.ones(3, 2).t(),
    }  # fmt: skip
    second = capture.copied(after, first)
    assert second["b"] is first["b"]
    assert second["e"] == 2
    for name in "acf":
        assert second[name] is not first[name]
        assert torch.equal(second[name], after[name])
    assert second["d"][0].tolist() == [1, 1]
    assert second["f"].stride() == after["f"].stride()
