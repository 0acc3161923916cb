"""The owner of a job's durable checkpoints: it saves them beside training, and loads the newest at a cold start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from elastrain.api.records import CheckpointState
from elastrain.api.settings import CheckpointSpec
from elastrain.elastic.checkpoint.cold_start import Evidence, why_stop
from elastrain.elastic.checkpoint.pace import Pace
from elastrain.elastic.checkpoint.volume import Checkpoint, CheckpointVolume, Unreadable
from elastrain.elastic.state import capture

FINISH_SECONDS = 300.0
"""Longest wait of an ending rank for its running save. The agent's limit is usually shorter: a drained worker has its
grace period, less 5 s."""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Saves and loads the checkpoints of one job; without ``spec.checkpoint`` it does neither.

    Every rank has one, and the rank that is rank 0 saves. At most one save runs at a time, in a thread. A failed save
    does not stop training: :attr:`result` reports it, and the next interval tries again. Memory: one copy of the state,
    from the first save to :meth:`forget`.
    """

    def __init__(self, spec: CheckpointSpec | None, volume: CheckpointVolume | None = None) -> None:
        """``volume``: default: the directory ``spec.path``."""
        self._spec = spec
        self._volume = CheckpointVolume(Path(spec.path), spec.keep) if spec and not volume else volume
        self.lineage = ""
        """The lineage of the training state in memory (:mod:`elastrain.elastic.checkpoint.volume`). It travels with
        the state."""
        self.result: CheckpointState | None = None
        """The newest checkpoint and the last save, for the job's status; None if this rank knows of none."""
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._thread: threading.Thread | None = None
        self._pace = Pace()
        self._copy: Any = None

    # -- load --------------------------------------------------------------------------------------------------------
    def resume(self, load: Callable[[Any], None], *, saved_step: int, reached: int, torn: bool) -> None:
        """Load the newest checkpoint that can be read, by ``load(tree)``, and begin a new lineage.

        For one rank of a cold start, a generation in which no rank holds state. Without a checkpoint the job begins at
        step 0. Raises ``RuntimeError`` if it must not (:func:`~elastrain.elastic.checkpoint.cold_start.why_stop`, which
        describes the arguments), the errors of ``load``, and ``OSError`` if the directory cannot be read or written.
        """
        volume = self._volume
        before = volume.lineage if volume else None
        found, unreadable = _load_newest(volume, load) if volume else (None, [])
        if found is None:
            path = str(volume.path) if volume else None
            tried = tuple((one.path.name, one.reason) for one in unreadable)
            if why := why_stop(Evidence(path, before is not None, tried, saved_step, reached, torn)):
                raise RuntimeError(why)
        if volume is None:
            return
        self.lineage = volume.begin_lineage(before)
        if found is None:
            log.info("no checkpoint yet, training begins at step 0", path=str(volume.path), repeated=reached)
            return
        volume.set_aside(unreadable)
        self.result = CheckpointState(step=found.step, path=str(found.path))
        log.info("resumed from checkpoint", path=str(found.path), step=found.step, lineage=found.lineage)
        if found.step < saved_step:
            log.warning("newer checkpoints are lost", step=found.step, newest=saved_step, path=str(volume.path))

    def take_over(self) -> None:
        """This rank is rank 0 now: learn, in a thread, which checkpoint is the newest. It belongs into reports."""
        running = self._thread is not None and self._thread.is_alive()
        if self._volume is None or self.result is not None or running:
            return
        self._thread = threading.Thread(target=self._look_up, args=(self._volume,), name="elastrain-look", daemon=True)
        self._thread.start()

    def _look_up(self, volume: CheckpointVolume) -> None:
        try:
            newest = next(iter(volume.complete()), None)
        except OSError as e:
            log.warning("checkpoint directory cannot be read", path=str(volume.path), error=str(e))
            return
        if newest is not None:
            self.result = CheckpointState(step=newest.step, path=str(newest.path))

    def newest_step(self) -> int:
        """Committed steps of the newest checkpoint; 0 if there is none."""
        found = self._volume.complete() if self._volume is not None else []
        return found[0].step if found else 0

    # -- save --------------------------------------------------------------------------------------------------------
    def after_step(self, step: int, generation: int, tree: Callable[[], Any]) -> None:
        """Begin to save ``tree()`` if a save is due after ``step`` committed steps, and none runs."""
        now = time.monotonic()
        running = self._thread is not None and self._thread.is_alive()
        if self._spec is None or running:
            return
        if not due(self._spec, step=step, saved_step=self._saved_step, now=now, saved_at=self._saved_at):
            return
        self._saved_step, self._saved_at = step, now
        self._copy, self._pace = capture.copied(tree(), self._copy, device="cpu"), Pace()
        args = (self._copy, step, generation, self.lineage, self._pace)
        self._thread = threading.Thread(target=self._save, args=args, name="elastrain-save", daemon=True)
        self._thread.start()

    def save_now(self, step: int, generation: int, tree: Callable[[], Any]) -> bool:
        """Save ``tree()`` and return when the save is done or has failed; waits for a running save first.

        Returns False, at once, for a job without checkpoints.
        """
        if self._volume is None:
            return False
        self._pace.hurry()
        if self._thread is not None:
            self._thread.join()
        self._save(tree(), step, generation, self.lineage)
        return True

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Return when a running save has ended, or after ``seconds``.

        Its thread ends with the process. Without this, a long save would never be complete if each writer is drained.
        """
        self._pace.hurry()
        if self._thread is not None and self._thread.is_alive():
            log.info("the process ends after its running save", most_seconds=seconds)
            self._thread.join(seconds)

    def forget(self) -> None:
        """Release the copy of the state: this rank is no longer rank 0. A running save releases it when it ends."""
        self._copy = self.result = None

    def _save(self, tree: Any, step: int, generation: int, lineage: str, pace: Pace | None = None) -> None:
        assert self._volume is not None
        began = time.monotonic()
        try:
            saved = self._volume.save(tree, step=step, generation=generation, lineage=lineage, pace=pace)
        except Exception as e:
            log.error("checkpoint failed", step=step, path=str(self._volume.path), error=str(e))
            last = self.result or CheckpointState()
            error = f"saving step {step} to {self._volume.path}: {e}"
            self.result = CheckpointState(step=last.step, path=last.path, error=error)
        else:
            log.info("checkpoint saved", step=step, path=str(saved.path), seconds=round(time.monotonic() - began, 2))
            self.result = CheckpointState(step=step, path=str(saved.path))


def due(spec: CheckpointSpec, *, step: int, saved_step: int, now: float, saved_at: float) -> bool:
    """Whether to save after ``step`` committed steps. Pure.

    ``saved_step`` and ``saved_at`` (monotonic seconds, like ``now``) belong to the last attempt, before any to the
    start. A failed attempt counts, so that a full disk is tried again at the next interval and not at every step.
    """
    if step <= saved_step:
        return False
    by_steps = spec.every_steps is not None and step // spec.every_steps > saved_step // spec.every_steps
    by_time = spec.every_seconds is not None and now - saved_at >= spec.every_seconds
    return by_steps or by_time


def _load_newest(volume: CheckpointVolume, load: Callable[[Any], None]) -> tuple[Checkpoint | None, list[Unreadable]]:
    """Load the newest checkpoint that can be read. Returns it, and those that cannot be read."""
    complete, unreadable = volume.survey()
    for checkpoint in complete:
        try:
            tree = volume.load(checkpoint)
        except Exception as e:  # torch raises many kinds for damaged files
            log.error("checkpoint cannot be read", path=str(checkpoint.path), error=str(e)[:300])
            unreadable.append(Unreadable(checkpoint.path, f"{type(e).__name__}: {e}"))
            continue
        load(tree)
        return checkpoint, unreadable
    return None, unreadable
