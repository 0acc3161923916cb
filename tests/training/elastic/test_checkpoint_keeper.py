"""Durable checkpoints beside training: their content, and when they are written."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest
import torch

from elastrain.api import names
from elastrain.api.shape import ONE_RANK, Shape
from elastrain.data.share import Place
from elastrain.elastic.checkpoint import (
    Checkpoint,
    CheckpointKeeper,
    Cut,
    Grid,
    KeptState,
    Level,
    Pace,
    Writers,
    folder,
    levels_of,
    tier_at,
)
from elastrain.elastic.checkpoint.folder import NewFolder
from elastrain.elastic.checkpoint.store import DirectoryStore
from elastrain.elastic.group.saving import Saving
from elastrain.elastic.state.host_copy import HostCopy
from elastrain_resource.job import CheckpointSpec


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


@pytest.mark.parametrize("last", [True, False])
def test_a_save_whose_volume_hangs_is_reported_and_awaited_within_a_bound(keeper, volume, monkeypatch, last) -> None:
    monkeypatch.setattr("elastrain.elastic.checkpoint.keeper.FINISH_SECONDS", 0.1 if last else 0.0)
    if last:
        assert keeper.save_now(10, 1, lambda: {"weights": torch.ones(3)})
    else:
        save(keeper, 10, {"weights": torch.ones(3)})
        save(keeper, 11, {"weights": torch.ones(3)})
    assert keeper.result.error == "a save to /checkpoints makes no progress: does its volume hang?"
    volume.may_end.set()
    ended(keeper)
    assert (keeper.result.step, keeper.result.error) == (10, "")


class TwoRanks:
    """What two threads gather, in the place of a communicator."""

    def __init__(self, rank: int, rows: dict[int, list[int]], met: threading.Barrier) -> None:
        self.rank, self.rows, self.met = rank, rows, met

    def all_gather_ints(self, values: list[int]) -> list[list[int]]:
        self.rows[self.rank] = values
        self.met.wait(30)
        return [self.rows[rank] for rank in range(2)]


@pytest.mark.parametrize("fails", [True, False])
def test_ranks_save_together_again_before_they_end_only_if_their_save_of_the_step_has_failed(tmp_path, fails) -> None:
    keepers = [CheckpointKeeper(levels_of(CheckpointSpec(path=str(tmp_path), every_steps=10))) for _ in range(2)]
    tree, tiers = {"w": torch.ones(3), "v": torch.zeros(2)}, [keeper._levels[0].tier for keeper in keepers]
    savings = [Saving(k, {}, lambda: tree, together=True, shape=Shape()) for k in keepers]
    keepers[0].lineage = keepers[1].lineage = tiers[0].begin_lineage(None)
    for rank, saving in enumerate(savings):
        saving.enter([0, 0], Place(1, rank, 2))
    ended(keepers[0])
    create, parts = tiers[1]._store.create, list[str]()

    def written(path: str) -> Any:
        parts.append(path)
        if fails and len(parts) == 1:
            raise OSError(errno.EIO, "broken", path)
        return create(path)

    tiers[1]._store.create = written
    votes = sum(saving.vote(10) for saving in savings)
    for saving in savings:
        saving.after_step(votes, 10, holds=True)
    rows, met = dict[int, list[int]](), threading.Barrier(2)
    ends = [threading.Thread(target=s.save_now, args=(10, TwoRanks(r, rows, met))) for r, s in enumerate(savings)]
    for end in ends:
        end.start()
    for end in ends:
        end.join(60)
    assert (keepers[0].result.step, keepers[0].result.error) == (10, "")
    assert torch.equal(tiers[0].load(tiers[0].complete()[0])["w"], tree["w"])
    assert len(parts) == 1 + fails


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
    copies = HostCopy()
    first = copies.take({"e": 1, **{name: torch.zeros(shape) for name, shape in shapes.items()}}).complete()
    after = {
        "a": torch.ones(3), "b": torch.ones(2, 2), "c": torch.ones(2).double(), "d": [torch.ones(2)], "e": 2,
        "f": torch.ones(3, 2).t(),
    }  # fmt: skip
    second = copies.take(after).complete()
    assert second["b"] is first["b"]
    assert second["e"] == 2
    for name in "acf":
        assert second[name] is not first[name]
        assert torch.equal(second[name], after[name])
    assert second["d"][0].tolist() == [1, 1]
    assert second["f"].stride() == after["f"].stride()


# ---- beside training ------------------------------------------------------------------------------------------------
def test_a_save_rests_for_the_processor_time_that_it_took_and_not_for_the_disk(monkeypatch) -> None:
    took = iter([10.0, 10.5, 10.6, 10.6, 10.6, 70.0, 71.0])  # processor seconds of the thread, at each call
    monkeypatch.setattr(folder.time, "thread_time", lambda: next(took))
    of_a_save, rests = Pace(share=0.25), []
    monkeypatch.setattr(of_a_save._hurry, "wait", rests.append)
    of_a_save.begin()
    for _ in range(3):
        of_a_save.rest()
    assert rests == pytest.approx([3 * 0.5, 0.0, folder.REST_SECONDS - 3 * 0.5]), "the rests of a long save are bounded"


def test_each_note_is_read_once_while_the_last_part_is_awaited(tmp_path) -> None:
    store, reads = DirectoryStore(tmp_path), list[str]()
    checkpoint = Checkpoint(10, 1, "1-0123456789ab", "")
    folders = [NewFolder(store, checkpoint, Writers.of([0, 0, 0], rank, "1/10", ONE_RANK)) for rank in range(3)]

    class LateOnThirdLook(Pace):
        looks = 0

        def wait(self, seconds: float) -> bool:
            self.looks += 1
            if self.looks == 3:
                folders[2].parts("of rank 2", Pace())
            return True

    read = store.read
    store.read = lambda path, *part: reads.append(path[-5:]) or read(path, *part)
    folders[1].parts("of rank 1", Pace())
    assert folders[0].parts("of rank 0", LateOnThirdLook()) == [f"of rank {rank}" for rank in range(3)]
    assert reads == ["00001", "00002"]


def test_a_save_stops_resting_if_training_waits_for_it(tmp_path) -> None:
    tier, of_a_save, rested = tier_at(str(tmp_path), 2), Pace(share=1e-9), threading.Event()
    rest = of_a_save.rest
    of_a_save.rest = lambda: rested.set() or rest()
    how = {"step": 7, "generation": 1, "lineage": tier.begin_lineage(None), "pace": of_a_save}
    saving = threading.Thread(target=tier.save, args=({"w": torch.ones(3)},), kwargs=how)
    saving.start()
    assert rested.wait(30)
    of_a_save.hurry()
    saving.join(30)
    assert tier.load(tier.complete()[0])["w"].tolist() == [1, 1, 1]
