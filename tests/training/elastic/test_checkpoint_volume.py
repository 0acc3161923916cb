"""Durable checkpoints: complete or absent, never overwritten by a replaced job."""

import os
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.job import CheckpointSpec
from elastrain.elastic.checkpoint import CheckpointVolume, Pace, StaleLineage, pace
from elastrain.elastic.checkpoint.keeper import due


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
def volume(tmp_path: Path) -> CheckpointVolume:
    return CheckpointVolume(tmp_path / "checkpoints", keep=2)


def test_a_loaded_tree_is_equal_with_integer_keys_and_tuples(volume) -> None:
    lineage = volume.begin_lineage(1)
    saved = volume.save(tree(1.5), step=7, generation=1, lineage=lineage)
    assert volume.complete() == [saved]
    assert same(volume.load(saved), tree(1.5))


def test_only_the_newest_are_kept(volume) -> None:
    lineage = volume.begin_lineage(1)
    for step in (5, 10, 15):
        volume.save(tree(step), step=step, generation=1, lineage=lineage)
    assert [c.step for c in volume.complete()] == [15, 10]


def test_save_is_refused_if_the_job_was_restarted(volume) -> None:
    old = volume.begin_lineage(3)
    new = volume.begin_lineage(4)
    volume.save(tree(1), step=5, generation=4, lineage=new)
    with pytest.raises(StaleLineage, match=old):
        volume.save(tree(2), step=6, generation=3, lineage=old)
    assert [c.step for c in volume.complete()] == [5]


def test_save_is_refused_if_the_job_is_restarted_while_it_is_written(volume) -> None:
    class StartedAnew(Pace):
        """The writer rests between two tensors; meanwhile another start of the job takes over the directory."""

        def rest(self) -> None:
            volume.begin_lineage(4)

    with pytest.raises(StaleLineage):
        volume.save(tree(1), step=5, generation=3, lineage=volume.begin_lineage(3), pace=StartedAnew())
    assert volume.complete() == []


def test_saving_a_step_twice_keeps_the_first(volume) -> None:
    lineage = volume.begin_lineage(1)
    first = volume.save(tree(1), step=5, generation=1, lineage=lineage)
    assert volume.save(tree(1), step=5, generation=2, lineage=lineage) == first


def test_checkpoint_of_an_earlier_start_is_replaced_if_the_same_step_is_saved_again(volume) -> None:
    volume.save(tree(1), step=5, generation=1, lineage=volume.begin_lineage(1))
    volume.save(tree(2), step=5, generation=4, lineage=volume.begin_lineage(4))
    (only,) = volume.complete()
    assert same(volume.load(only), tree(2))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_complete_checkpoints_stay_if_the_disk_is_full(tmp_path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    try:
        volume = CheckpointVolume(tmp_path)
        lineage = volume.begin_lineage(1)
        saved = volume.save(tree(1), step=1, generation=1, lineage=lineage)
        big = {"tracked": {"model": {"w": torch.zeros(200_000)}}}
        with pytest.raises(OSError, match=f"No space left on device.*{tmp_path}"):
            volume.save(big, step=2, generation=1, lineage=lineage)
        assert volume.complete() == [saved]
        assert same(volume.load(saved), tree(1))
        assert not list(tmp_path.glob(".step*")), "the partial checkpoint was left behind"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


steps = st.integers(0, 1000)


@given(steps, steps, st.integers(1, 50))
def test_a_save_is_due_in_every_interval_of_steps(step, saved, every) -> None:
    spec = CheckpointSpec(path="/c", every_steps=every)
    is_due = due(spec, step=step, saved_step=saved, now=0, saved_at=0)
    crossed = any(s % every == 0 for s in range(saved + 1, step + 1))
    assert is_due == crossed


@given(steps, st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_save_is_due_if_only_drains_are_saved_or_nothing_is_new(step, now, at) -> None:
    assert not due(CheckpointSpec(path="/c"), step=step, saved_step=0, now=now, saved_at=at)
    assert not due(CheckpointSpec(path="/c", every_seconds=1), step=step, saved_step=step, now=now, saved_at=at)


# ---- beside training ------------------------------------------------------------------------------------------------
def test_a_save_rests_for_the_processor_time_that_it_took_and_not_for_the_disk(monkeypatch) -> None:
    took = iter([10.0, 10.5, 10.6, 10.6, 10.6, 70.0, 71.0])  # processor seconds of the thread, at each call
    monkeypatch.setattr(pace.time, "thread_time", lambda: next(took))
    of_a_save, rests = Pace(share=0.25), []
    monkeypatch.setattr(of_a_save._hurry, "wait", rests.append)
    of_a_save.begin()
    for _ in range(3):
        of_a_save.rest()
    assert rests == pytest.approx([3 * 0.5, 0.0, pace.REST_SECONDS - 3 * 0.5]), "the rests of a long save are bounded"


def test_a_paced_save_is_complete(volume) -> None:
    saved = volume.save(tree(1.5), step=7, generation=1, lineage=volume.begin_lineage(1), pace=Pace())
    assert same(volume.load(saved), tree(1.5))


def test_a_save_stops_resting_if_training_waits_for_it(volume) -> None:
    of_a_save = Pace(share=1e-9)
    lineage = volume.begin_lineage(1)
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
