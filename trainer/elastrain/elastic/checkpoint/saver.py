"""Durable checkpoints beside training: copied at a step boundary, written by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from elastrain.api.job import CheckpointSpec
from elastrain.api.records import CheckpointState
from elastrain.elastic.checkpoint import CheckpointVolume, Pace, due
from elastrain.elastic.state import capture

log = structlog.get_logger(__name__)


class Saver:
    """Writes at most one checkpoint at a time; used by the rank that is rank 0 at the moment.

    A failed save never stops training: it is kept in :attr:`result` for the status, and tried again at the next
    interval. Memory: one copy of the state, from the first save to :meth:`forget`.
    """

    def __init__(self, volume: CheckpointVolume, spec: CheckpointSpec) -> None:
        self._volume, self._spec = volume, spec
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._thread: threading.Thread | None = None
        self._pace = Pace()
        self._copy: Any = None
        self.result: CheckpointState | None = None

    def after_step(self, step: int, generation: int, lineage: str, tree: Callable[[], Any]) -> None:
        """Begin a save if one is due and none runs."""
        now = time.monotonic()
        running = self._thread is not None and self._thread.is_alive()
        if running or not due(self._spec, step=step, saved_step=self._saved_step, now=now, saved_at=self._saved_at):
            return
        self._saved_step, self._saved_at = step, now
        self._copy, self._pace = capture.to_cpu_copy(tree(), self._copy), Pace()
        args = (self._copy, step, generation, lineage, self._pace)
        self._thread = threading.Thread(target=self._save, args=args, name="elastrain-save", daemon=True)
        self._thread.start()

    def save_now(self, step: int, generation: int, lineage: str, tree: Any) -> None:
        """Save and return when it is done or has failed; a running save is waited for first."""
        self._pace.hurry()
        if self._thread is not None:
            self._thread.join()
        self._save(tree, step, generation, lineage)

    def forget(self) -> None:
        """This rank is not rank 0 any more: give the memory back, when a running save has ended at the latest."""
        self._copy = None

    def _save(self, tree: Any, step: int, generation: int, lineage: str, pace: Pace | None = None) -> None:
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
