"""Checkpoints as directories of a volume that all workers mount.

Layout::

    <path>/step-000000120/                        one complete checkpoint: torch's distributed checkpoint (DCP) and
                                                  elastrain.json
    <path>/LINEAGE                                the lineage that may write here
    <path>/unreadable-step-000000120.<random>/    set aside: it could not be read when a job had to resume
    <path>/.step-000000120.<lineage>.<random>/    being written, or left by a writer that was killed

A checkpoint becomes visible by one rename, so a half-written one is never loaded. One rank writes, since replicas are
equal. The format does not contain the world size, so any world loads it.

**Lineages.** Every cold start (a generation in which no rank holds state) begins a new *lineage*. Its name travels with
the training state and is stored in ``LINEAGE``. The names are numbered: a higher number is a later start. The newest
checkpoint is that of the newest lineage, although an older lineage may have reached a higher step before its last
checkpoints were lost. A save by any other lineage is refused: ranks that were cut off while the job was restarted
elsewhere cannot overwrite the checkpoints of the restarted job.

**Deletion.** A directory is renamed before its files are deleted, so a half-deleted checkpoint is never loaded either,
and of a writer and the deletion of its partial directory one wins.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from elastrain.elastic.checkpoint.pace import Pace

log = structlog.get_logger(__name__)

_STEP = re.compile(r"step-(\d{9,})")
_COMPLETE = re.compile(rf"{_STEP.pattern}(\.[0-9a-f]{{8}})?")
_PARTIAL = re.compile(rf"\.{_STEP.pattern}\.((?P<lineage>.*)\.)?[0-9a-f]{{8}}")
_ASIDE = re.compile(rf"unreadable-{_STEP.pattern}\.[0-9a-f]{{8}}")
_META = "elastrain.json"
_LINEAGE = "LINEAGE"
_SWEPT_PER_SAVE = 8
"""Most partial directories that one save deletes: a drain waits for the save."""


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

    @property
    def order(self) -> tuple[int, int]:
        """Greatest for the newest checkpoint."""
        return _number(self.lineage), self.step


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The directory of a checkpoint that cannot be read."""

    path: Path
    reason: str


class CheckpointVolume:
    """The checkpoint directory of one job. Every method may raise ``OSError`` with the path in it."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        """``keep``: number of complete checkpoints to keep; at least 1."""
        # Imported here: only a job with checkpoints pays for the import, and not during a step.
        from elastrain.elastic.checkpoint import dcp

        self.path, self._keep, self._format = path, keep, dcp

    # -- read --------------------------------------------------------------------------------------------------------
    def complete(self) -> list[Checkpoint]:
        """All complete checkpoints, the newest first."""
        return self.survey()[0]

    def survey(self) -> tuple[list[Checkpoint], list[Unreadable]]:
        """All complete checkpoints, the newest first, and those whose description cannot be read."""
        complete, damaged = [], []
        for name in self._names():
            directory = self.path / name
            if not _COMPLETE.fullmatch(name):
                continue
            try:
                meta = json.loads((directory / _META).read_text())
                complete.append(Checkpoint(**{**meta, "path": directory}))
            except NotADirectoryError:
                continue
            except (OSError, ValueError, TypeError) as e:
                damaged.append(Unreadable(directory, f"{_META}: {e}"))
        return sorted(complete, key=lambda c: c.order, reverse=True), damaged

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The saved tree; tensors on the CPU."""
        state: dict[str, Any] = self._format.load(checkpoint.path)
        return state

    @property
    def lineage(self) -> str | None:
        """The lineage that may write here; None: no job has begun with this directory."""
        try:
            return (self.path / _LINEAGE).read_text()
        except FileNotFoundError:
            return None

    # -- write -------------------------------------------------------------------------------------------------------
    def begin_lineage(self, after: str | None) -> str:
        """Take the directory over, and return the name of the new lineage. Saves of earlier lineages are refused.

        ``after``: :attr:`lineage` before the caller chose its checkpoint. Raises :class:`StaleLineage` if another start
        has taken the directory over since.
        """
        self._refuse_stale(after)
        earlier = [after or "", *(c.lineage for c in self.complete())]
        lineage = f"{1 + max(map(_number, earlier))}-{uuid.uuid4().hex[:12]}"
        self.path.mkdir(parents=True, exist_ok=True)
        _replace(self.path / _LINEAGE, lineage)
        return lineage

    def save(
        self, state: dict[str, Any], *, step: int, generation: int, lineage: str, pace: Pace | None = None
    ) -> Checkpoint:
        """Write ``state`` durably, then delete what is no longer needed. ``pace``: default: no rests.

        A step that this lineage has saved already is not written again: replicas are equal. On a full disk, leftovers
        are deleted, and the save is tried once more. Raises :class:`StaleLineage` without writing, and ``OSError`` with
        the file system's own reason. On any failure the partial directory is removed and all complete checkpoints stay.
        """
        self._refuse_stale(lineage)
        checkpoint = Checkpoint(step, generation, lineage, self.path / f"step-{step:09d}")
        if same := self._saved(checkpoint):
            return same
        try:
            saved = self._write(state, checkpoint, pace)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._make_room(checkpoint):
                raise
            saved = self._write(state, checkpoint, pace)
        self._tidy(saved)
        return saved

    def _write(self, state: dict[str, Any], checkpoint: Checkpoint, pace: Pace | None) -> Checkpoint:
        final, random = checkpoint.path, uuid.uuid4().hex[:8]
        partial = self.path / f".{final.name}.{checkpoint.lineage}.{random}"
        try:
            partial.mkdir(parents=True)
            self._format.save(state, partial, pace)
            _replace(partial / _META, json.dumps({**asdict(checkpoint), "path": final.name}))
            self._refuse_stale(checkpoint.lineage)
            if same := self._saved(checkpoint):  # by another rank, meanwhile
                return same
            if final.exists():  # the same step of an earlier lineage: it stays until it is one too many
                final.rename(final.with_name(f"{final.name}.{random}"))
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return checkpoint

    def _saved(self, checkpoint: Checkpoint) -> Checkpoint | None:
        wanted = (checkpoint.step, checkpoint.lineage)
        return next((c for c in self.complete() if (c.step, c.lineage) == wanted), None)

    def _refuse_stale(self, lineage: str | None) -> None:
        owner = self.lineage
        if owner not in (None, lineage):
            raise StaleLineage(
                f"{self.path} belongs to lineage {owner}, this is {lineage}: the job was restarted elsewhere"
            )

    # -- tidy up -----------------------------------------------------------------------------------------------------
    def set_aside(self, unreadable: Iterable[Unreadable]) -> None:
        """Rename checkpoints that cannot be read: no job resumes from them, and a person can still look at them.

        The newest ``keep`` of them stay, as long as the disk is not full. Raises nothing.
        """
        for path in (one.path for one in unreadable):
            aside = self.path / f"unreadable-{_step_of(path)}.{uuid.uuid4().hex[:8]}"
            try:
                path.rename(aside)
            except OSError as e:
                log.warning("unreadable checkpoint cannot be set aside", path=str(path), error=str(e))
            else:
                log.warning("unreadable checkpoint set aside", path=str(path), now=str(aside))

    def _tidy(self, saved: Checkpoint) -> None:
        """After a save: delete surplus checkpoints and leftovers. Raises nothing: the checkpoint is there."""
        try:
            for old in self.complete()[self._keep :]:
                if old != saved:  # a slow writer ends after the next one
                    self._delete(old.path)
            for path in self._set_aside()[self._keep :]:
                self._delete(path, "a newer one is set aside")
            for path in self._leftovers(saved)[:_SWEPT_PER_SAVE]:
                self._delete(path, "left by a writer that was killed or replaced")
        except OSError as e:
            log.warning("checkpoint directory cannot be tidied up", path=str(self.path), error=str(e))

    def _make_room(self, checkpoint: Checkpoint) -> bool:
        """Delete directories that no job resumes from. Returns whether there were any."""
        paths = [*self._set_aside(), *self._leftovers(checkpoint)]
        return sum(self._delete(path, "the disk is full") for path in paths) > 0

    def _leftovers(self, beside: Checkpoint) -> list[Path]:
        """Partial directories that are not needed ``beside`` a checkpoint of the present lineage.

        A writer of an earlier lineage would be refused at its end. A writer of an earlier step of this lineage is an
        earlier rank 0, dead or replaced. Every other one may be at work.
        """
        found = [partial for name in self._names() if (partial := _PARTIAL.fullmatch(name))]
        return [self.path / p[0] for p in found if (_number(p["lineage"] or ""), int(p[1])) < beside.order]

    def _set_aside(self) -> list[Path]:
        """What :meth:`set_aside` has renamed, the newest first."""
        paths = [self.path / name for name in self._names() if _ASIDE.fullmatch(name)]
        return sorted(paths, key=lambda path: path.stat().st_ctime, reverse=True)

    def _delete(self, path: Path, why: str = "") -> bool:
        """Returns whether it was there. ``why``: for the log; pruning is not worth a line."""
        trash = self.path / f".{_step_of(path)}.deleted.{uuid.uuid4().hex[:8]}"
        try:
            path.rename(trash)
        except OSError as e:
            log.warning("checkpoint directory cannot be deleted", path=str(path), error=str(e))
            return False
        if why:
            log.info("checkpoint directory deleted", path=str(path), why=why)
        shutil.rmtree(trash, ignore_errors=True)
        return True

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self.path.iterdir())
        except FileNotFoundError:
            return []


def _number(lineage: str) -> int:
    """The number of a lineage; 0 if its name has none."""
    number = re.match(r"(\d+)-", lineage)
    return int(number[1]) if number else 0


def _step_of(directory: Path) -> str:
    """``step-000000120``, whatever state the directory is in."""
    step = _STEP.search(directory.name)
    assert step is not None, directory
    return step[0]


def _replace(path: Path, text: str) -> None:
    """Replace a small file: a reader sees the old or the new text, also after a crash."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with partial.open("w") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    partial.replace(path)
