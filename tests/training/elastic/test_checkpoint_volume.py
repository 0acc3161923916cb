"""Durable checkpoints: complete or absent, never overwritten by a replaced job."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.shape import ONE_RANK
from elastrain.elastic.checkpoint import Checkpoint, Pace, StaleLineage, Tier, Writers, folder, tier_at
from elastrain.elastic.checkpoint.folder import NewFolder
from elastrain.elastic.checkpoint.rules import due
from elastrain.elastic.checkpoint.store import DirectoryStore


def tree(value: float) -> dict:
    optimizer = {
        "state": {0: {"exp_avg": torch.full((3, 2), value)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}],
    }
    return {"tracked": {"optimizer": optimizer}, "position": {"step": 7, "rescales": [{"reason": "Grow", "x": None}]}}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture
def volume(tmp_path: Path) -> Tier:
    return tier_at(str(tmp_path / "checkpoints"), keep=2)


def test_a_loaded_tree_is_equal_with_integer_keys_and_tuples(volume) -> None:
    lineage = volume.begin_lineage(volume.lineage)
    saved = volume.save(tree(1.5), step=7, generation=1, lineage=lineage)
    assert volume.complete() == [saved]
    assert same(volume.load(saved), tree(1.5))


def test_only_the_newest_are_kept(volume) -> None:
    lineage = volume.begin_lineage(volume.lineage)
    for step in (5, 10, 15):
        volume.save(tree(step), step=step, generation=1, lineage=lineage)
    assert [c.step for c in volume.complete()] == [15, 10]


def test_save_is_refused_if_the_job_was_restarted(volume) -> None:
    old = volume.begin_lineage(volume.lineage)
    new = volume.begin_lineage(volume.lineage)
    volume.save(tree(1), step=5, generation=4, lineage=new)
    with pytest.raises(StaleLineage, match=old):
        volume.save(tree(2), step=6, generation=3, lineage=old)
    assert [c.step for c in volume.complete()] == [5]


def test_save_is_refused_if_the_job_is_restarted_while_it_is_written(volume) -> None:
    class StartedAnew(Pace):
        """The writer rests between two tensors; meanwhile another start of the job takes over the directory."""

        def rest(self) -> None:
            volume.begin_lineage(volume.lineage)

    with pytest.raises(StaleLineage):
        volume.save(tree(1), step=5, generation=3, lineage=volume.begin_lineage(volume.lineage), pace=StartedAnew())
    assert volume.complete() == []


def test_a_start_is_refused_if_another_one_took_the_directory_over_while_it_read_its_checkpoint(volume) -> None:
    before = volume.lineage
    later = volume.begin_lineage(before)
    with pytest.raises(StaleLineage, match=later):
        volume.begin_lineage(before)
    assert volume.lineage == later


@pytest.mark.parametrize("pattern", [".metadata", "*.distcp"])
@pytest.mark.parametrize("how", ["missing", "cut off", "empty"])
def test_a_damaged_file_is_an_os_error(volume, how, pattern) -> None:
    saved = volume.save(tree(1), step=5, generation=1, lineage=volume.begin_lineage(None))
    (file,) = Path(saved.path).glob(pattern)
    content = file.read_bytes()
    file.unlink() if how == "missing" else file.write_bytes(content[: len(content) // 2 if how == "cut off" else 0])
    with pytest.raises(OSError, match=saved.name):
        volume.load(saved)


def test_saving_a_step_twice_keeps_the_first(volume) -> None:
    lineage = volume.begin_lineage(volume.lineage)
    first = volume.save(tree(1), step=5, generation=1, lineage=lineage)
    assert volume.save(tree(1), step=5, generation=2, lineage=lineage) == first


def test_checkpoint_of_an_earlier_start_is_superseded_if_the_same_step_is_saved_again(volume) -> None:
    volume.save(tree(1), step=5, generation=1, lineage=volume.begin_lineage(volume.lineage))
    again = volume.save(tree(2), step=5, generation=4, lineage=volume.begin_lineage(volume.lineage))
    newest, earlier = volume.complete()
    assert newest == again
    assert same(volume.load(newest), tree(2))
    assert same(volume.load(earlier), tree(1)), "one less than could be kept"


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def sized(kib: int) -> dict:
    return {"tracked": {"model": {"w": torch.zeros(kib * 256)}}}


def test_complete_checkpoints_stay_if_the_disk_is_full(small_disk) -> None:
    volume = tier_at(str(small_disk), keep=2)
    lineage = volume.begin_lineage(volume.lineage)
    saved = volume.save(tree(1), step=1, generation=1, lineage=lineage)
    with pytest.raises(OSError, match=f"No space left on device.*{small_disk}"):
        volume.save(sized(800), step=2, generation=1, lineage=lineage)
    assert volume.complete() == [saved]
    assert same(volume.load(saved), tree(1))
    assert not list(small_disk.glob(".step*")), "the partial checkpoint was left behind"


def test_a_save_has_the_room_of_leftovers_if_the_disk_is_full(small_disk) -> None:
    volume = tier_at(str(small_disk), keep=2)
    lineage = volume.begin_lineage(volume.lineage)
    left_behind(volume, 7, lineage)
    (small_disk / left_behind(volume, 6, lineage)).rename(small_disk / "unreadable-step-000000006.01234567")
    volume.save(sized(100), step=8, generation=1, lineage=lineage)
    assert sorted(p.name for p in small_disk.iterdir()) == ["LINEAGE", "step-000000008"]


# ---- what a killed process leaves ------------------------------------------------------------------------------------
def left_behind(volume: Tier, step: int, lineage: str) -> str:
    """A partial checkpoint of 100 KiB."""
    partial = Path(volume.where) / f".step-{step:09d}.{lineage}.{step:08x}"
    partial.mkdir(parents=True)
    (partial / "__0_0.distcp").write_bytes(b"x" * 100_000)
    return partial.name


def partials(volume: Tier) -> list[str]:
    return sorted(p.name for p in Path(volume.where).glob(".step-*"))


def test_partial_checkpoints_are_swept_if_no_writer_may_complete_them(volume) -> None:
    old = volume.begin_lineage(volume.lineage)
    left_behind(volume, 900, old)
    left_behind(volume, 950, "deleted")
    lineage = volume.begin_lineage(volume.lineage)
    left_behind(volume, 6, lineage)
    at_work = [left_behind(volume, 7, lineage), left_behind(volume, 8, lineage)]
    volume.save(tree(1), step=7, generation=1, lineage=lineage)
    assert partials(volume) == at_work, "replicas write the same step; a later one is that of the present rank 0"
    volume.save(tree(1), step=9, generation=1, lineage=lineage)
    assert partials(volume) == []


def test_a_partial_checkpoint_of_a_later_start_stays_if_a_save_ends_late(volume, monkeypatch) -> None:
    lineage = volume.begin_lineage(volume.lineage)
    monkeypatch.setattr(volume, "_refuse_stale", lambda lineage: None)  # it was asked just before the later start
    at_work = left_behind(volume, 2, volume.begin_lineage(volume.lineage))
    volume.save(tree(1), step=5, generation=1, lineage=lineage)
    assert partials(volume) == [at_work]


def test_a_sweep_is_bounded_and_fails_no_save(volume, monkeypatch) -> None:
    old, lineage = volume.begin_lineage(volume.lineage), volume.begin_lineage(volume.lineage)
    for step in range(20):
        left_behind(volume, step, old)
    volume.save(tree(1), step=1, generation=1, lineage=lineage)
    assert len(partials(volume)) == 12
    with monkeypatch.context() as patched:
        patched.setattr(volume, "delete", lambda path, why="": (_ for _ in ()).throw(PermissionError(13, "no", path)))
        volume.save(tree(1), step=2, generation=1, lineage=lineage)
    assert [c.step for c in volume.complete()] == [2, 1]


def test_a_writer_fails_and_publishes_nothing_if_its_partial_checkpoint_was_swept_meanwhile(volume) -> None:
    class Overtaken(Pace):
        def rest(self) -> None:
            volume.save(tree(2), step=6, generation=2, lineage=lineage)

    lineage = volume.begin_lineage(volume.lineage)
    with pytest.raises(FileNotFoundError):
        volume.save(tree(1), step=5, generation=1, lineage=lineage, pace=Overtaken())
    assert [c.step for c in volume.complete()] == [6]
    assert partials(volume) == []


def test_no_half_deleted_checkpoint_is_loaded_if_its_deletion_is_cut_off(volume, monkeypatch) -> None:
    lineage = volume.begin_lineage(volume.lineage)
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: None)  # killed before the first file is deleted
    for step in (1, 2, 3):
        volume.save(tree(step), step=step, generation=1, lineage=lineage)
    assert [c.step for c in volume.complete()] == [3, 2]
    monkeypatch.undo()
    volume.save(tree(4), step=4, generation=1, lineage=lineage)
    assert partials(volume) == []


def test_a_late_save_stays_until_the_next_one_though_later_steps_are_there(volume) -> None:
    lineage = volume.begin_lineage(volume.lineage)
    for step in (10, 20, 5):
        saved = volume.save(tree(step), step=step, generation=1, lineage=lineage)
        assert saved in volume.complete()
    volume.save(tree(30), step=30, generation=1, lineage=lineage)
    assert [c.step for c in volume.complete()] == [30, 20]


steps = st.integers(0, 1000)


@given(steps, steps, st.integers(1, 50))
def test_a_save_is_due_in_every_interval_of_steps(step, saved, every) -> None:
    is_due = due(every, None, step=step, saved_step=saved, now=0, saved_at=0)
    crossed = any(s % every == 0 for s in range(saved + 1, step + 1))
    assert is_due == crossed


@given(steps, st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_save_is_due_if_only_drains_are_saved_or_nothing_is_new(step, now, at) -> None:
    assert not due(None, None, step=step, saved_step=0, now=now, saved_at=at)
    assert not due(None, 1, step=step, saved_step=step, now=now, saved_at=at)


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


def test_a_paced_save_is_complete(volume) -> None:
    saved = volume.save(tree(1.5), step=7, generation=1, lineage=volume.begin_lineage(volume.lineage), pace=Pace())
    assert same(volume.load(saved), tree(1.5))


def test_a_save_stops_resting_if_training_waits_for_it(volume) -> None:
    of_a_save = Pace(share=1e-9)
    lineage = volume.begin_lineage(volume.lineage)
    saving = threading.Thread(
        target=volume.save,
        args=(tree(1.5),),
        kwargs={"step": 7, "generation": 1, "lineage": lineage, "pace": of_a_save},
    )
    saving.start()
    saving.join(0.5)
    assert saving.is_alive(), "it rests"
    of_a_save.hurry()
    saving.join(30)
    assert [c.step for c in volume.complete()] == [7]
