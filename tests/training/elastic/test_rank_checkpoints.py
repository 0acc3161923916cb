"""Durable checkpoints of real ranks, killed in the middle of a save, or started anew without their volume."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conditions import eventually
from elastrain.api import messages as m
from elastrain.api.settings import CheckpointSpec
from elastrain_audit.judge import verify

SLOW_SAVE = Path(__file__).parent / "train_slow_save.py"


@pytest.fixture
def volume(world) -> Path:
    return world.folder / "checkpoints"


def start(world, volume: Path, *ranks: str, every: int = 5, script: Path | None = None) -> None:
    spec = CheckpointSpec(path=str(volume), every_steps=every)
    world.start(*ranks, epochs=3, script=script, checkpoint=spec)
    world.ready(*ranks)
    world.propose(*ranks)


def has_saved(world, rank: str) -> None:
    world.wait(f"{rank} reports a checkpoint", world.ranks[rank].saved_step)


def is_in_the_middle_of_a_save(world, volume: Path) -> Path:
    """From now on saves are held up. Returns the partial checkpoint."""
    (world.folder / "hold-saves").touch()
    world.wait("a save is held up", (world.folder / "save-is-held").exists)  # one that was ending may be there too
    return max(volume.glob(".step-*"))


def test_nothing_is_lost_and_its_partial_checkpoint_is_swept_if_the_writer_is_killed_in_a_save(world, volume) -> None:
    start(world, volume, "a", "b", script=SLOW_SAVE)
    has_saved(world, "a")
    partial = is_in_the_middle_of_a_save(world, volume)
    world.ranks["a"].kill()
    world.wait("the loss is reported", lambda: world.ranks["b"].has("broken", generation=world.number))
    world.propose("b")
    has_saved(world, "b")  # no save of its own has ended yet
    assert partial.exists()
    (world.folder / "hold-saves").unlink()
    world.wait("the partial checkpoint is swept", lambda: not partial.exists())
    final = world.finished("b")["b"]
    assert final["commits"] == list(range(1, final["step"] + 1)), "a committed step was lost or redone"
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert verdict.redone == 0
    assert sorted(p.name[:5] for p in volume.iterdir()) == ["LINEA", "step-", "step-"]


def test_a_writer_that_is_drained_in_a_save_completes_it_before_it_ends(world, volume) -> None:
    start(world, volume, "a", "b", script=SLOW_SAVE)
    has_saved(world, "a")
    partial = is_in_the_middle_of_a_save(world, volume)
    world.propose("b")
    world.ranks["a"].send(m.Exit(reason="drained"))
    world.wait("b trains alone", lambda: world.ranks["b"].has("adopted", generation=world.number))
    said = world.ranks["a"].log
    world.wait("a waits for its save", lambda: "ends after its running save" in said.read_text())
    assert world.ranks["a"].process.poll() is None
    saved = said.read_text().count("checkpoint saved")
    (world.folder / "hold-saves").unlink()
    eventually(lambda: world.ranks["a"].process.poll() == 0, what="a ends", within=30)
    assert said.read_text().count("checkpoint saved") == saved + 1
    assert not partial.exists()
    assert verify(world.audit).ok


def test_job_resumes_from_the_complete_checkpoint_if_all_are_killed_in_a_save(world, volume) -> None:
    start(world, volume, "a", script=SLOW_SAVE)
    has_saved(world, "a")
    partial = is_in_the_middle_of_a_save(world, volume)
    complete = max(int(p.name[5:]) for p in volume.glob("step-*"))
    world.ranks["a"].kill()
    (world.folder / "hold-saves").unlink()
    start(world, volume, "x", script=SLOW_SAVE)
    world.wait("the partial checkpoint is swept", lambda: not partial.exists())
    assert world.finished("x")["x"]["commits"][0] == complete + 1
    assert verify(world.audit).ok


def test_training_stops_and_says_why_if_all_were_lost_and_the_volume_is_not_mounted(world, volume) -> None:
    start(world, volume, "a")
    has_saved(world, "a")
    world.ranks["a"].kill()
    shutil.rmtree(volume)
    volume.mkdir()
    start(world, volume, "x")
    lost = world.ranks["x"]
    eventually(lambda: lost.process.poll() == 1, what=lambda: f"x fails:\n{lost.log.read_text()[-3000:]}", within=60)
    assert f"RuntimeError: cannot resume: {volume} was never used (is its volume mounted?)" in lost.log.read_text()
    assert not list(volume.iterdir())
