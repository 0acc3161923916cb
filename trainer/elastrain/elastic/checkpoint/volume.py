"""Checkpoints as directories of a volume that all workers mount.

Layout::

    <path>/step-000000120/     one complete checkpoint: torch's distributed checkpoint (DCP) and elastrain.json
    <path>/LINEAGE             the lineage that may write here

A checkpoint becomes visible by one rename, so a half-written one is never loaded. One rank writes, since replicas are
equal. The format does not contain the world size, so any world loads it.

**Fencing.** Every cold start (a generation in which no rank holds state) begins a new *lineage*. Its name travels with
the training state and is stored in ``LINEAGE``. A save by any other lineage is refused: ranks that were cut off while
the job was restarted elsewhere cannot overwrite the checkpoints of the restarted job.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elastrain.elastic.checkpoint.pace import Pace

_PREFIX = "step-"
_META = "elastrain.json"
_LINEAGE = "LINEAGE"


class StaleLineage(RuntimeError):
    """Another start of the job has taken the checkpoint directory over; this one must not write."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    """Committed steps in it."""
    generation: int
    """Generation that wrote it."""
    lineage: str
    path: Path


class CheckpointVolume:
    """The checkpoint directory of one job. Every method may raise ``OSError`` with the path in it."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        """``keep``: number of complete checkpoints to keep; at least 1."""
        # Imported here: only a job with checkpoints pays for the import, and not during a step.
        from elastrain.elastic.checkpoint import dcp

        self.path, self._keep, self._format = path, keep, dcp

    def complete(self) -> list[Checkpoint]:
        """All complete checkpoints, the one with the most steps first."""
        found = []
        for directory in self.path.glob(f"{_PREFIX}*"):
            try:
                meta = json.loads((directory / _META).read_text())
                found.append(Checkpoint(**{**meta, "path": directory}))
            except (OSError, ValueError, TypeError):
                continue  # not complete, or not a checkpoint of elastrain
        return sorted(found, key=lambda c: c.step, reverse=True)

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The saved tree; tensors on the CPU."""
        state: dict[str, Any] = self._format.load(checkpoint.path)
        return state

    def begin_lineage(self, generation: int) -> str:
        """Take the directory over, and return the name of the new lineage. Saves of earlier lineages are refused."""
        lineage = f"{generation}-{uuid.uuid4().hex[:12]}"
        self.path.mkdir(parents=True, exist_ok=True)
        _replace(self.path / _LINEAGE, lineage)
        return lineage

    def save(
        self, state: dict[str, Any], *, step: int, generation: int, lineage: str, pace: Pace | None = None
    ) -> Checkpoint:
        """Write ``state`` durably, and delete all checkpoints but the ``keep`` newest. ``pace``: default: no rests.

        A step that this lineage has saved already is not written again: replicas are equal. Raises
        :class:`StaleLineage` without writing, and ``OSError`` with the file system's own reason. On any failure the
        partial directory is removed and all complete checkpoints stay.
        """
        self._refuse_stale(lineage)
        final = self.path / f"{_PREFIX}{step:09d}"
        if same := next((c for c in self.complete() if (c.step, c.lineage) == (step, lineage)), None):
            return same
        partial = self.path / f".{final.name}.{uuid.uuid4().hex[:8]}"
        try:
            partial.mkdir(parents=True)
            self._format.save(state, partial, pace)
            checkpoint = Checkpoint(step, generation, lineage, final)
            _replace(partial / _META, json.dumps({**asdict(checkpoint), "path": final.name}))
            self._refuse_stale(lineage)
            if final.exists():  # the same step, saved before a restart of the job: the new one replaces it
                shutil.rmtree(final)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._prune()
        return checkpoint

    def _refuse_stale(self, lineage: str) -> None:
        try:
            owner = (self.path / _LINEAGE).read_text()
        except FileNotFoundError:
            return
        if owner != lineage:
            raise StaleLineage(
                f"{self.path} belongs to lineage {owner}, this is {lineage}: the job was restarted elsewhere"
            )

    def _prune(self) -> None:
        for old in self.complete()[self._keep :]:
            shutil.rmtree(old.path, ignore_errors=True)


def _replace(path: Path, text: str) -> None:
    """Replace a small file: a reader sees the old or the new text, also after a crash."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with partial.open("w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    partial.replace(path)
