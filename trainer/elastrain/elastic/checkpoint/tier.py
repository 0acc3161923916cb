"""One tier of a job's checkpoints: a place in which they are complete or absent, and never those of a replaced job.

One rank writes where replicas are equal. The ranks of a sharded model write together
(:mod:`elastrain.elastic.checkpoint.division`). The format does not contain the world size, so any world loads it.

**Lineages** (:mod:`elastrain.elastic.checkpoint.rules`). The name of the lineage travels with the training state; the
file ``LINEAGE`` of each tier holds it too. A save by an earlier lineage is refused: ranks that were cut off while the
job was restarted elsewhere cannot overwrite the checkpoints of the restarted job.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import structlog
import torch

from elastrain.elastic.checkpoint import digests, rules
from elastrain.elastic.checkpoint.digests import FileDigest
from elastrain.elastic.checkpoint.division import ALONE, WHOLE, Cut, Writers
from elastrain.elastic.checkpoint.folder import NewFolder, Pace
from elastrain.elastic.checkpoint.rules import Checkpoint, NewerVersion, Partial
from elastrain.elastic.checkpoint.store import DESCRIPTION, DirectoryStore, Store, described

log = structlog.get_logger(__name__)

_LINEAGE = "LINEAGE"


class StaleLineage(RuntimeError):
    """Another start of the job has taken the place over; this one must not write."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A checkpoint that cannot be read."""

    tier: Tier
    name: str
    """Of its folder; empty: the tier itself cannot be read."""
    reason: str


class Tier:
    """The checkpoints of one job in one place. Every method may raise ``OSError`` with the path in it."""

    def __init__(self, name: str, store: Store, keep: int = 2) -> None:
        """``name``: for people: volume, object store. ``keep``: complete checkpoints to keep; at least 1."""
        # Imported here: only a job with checkpoints pays for the import, and not during a step.
        from elastrain.elastic.checkpoint import dcp

        self.name, self._store, self._keep, self._format = name, store, keep, dcp

    @property
    def where(self) -> str:
        """The directory or URL."""
        return self._store.where

    # -- read --------------------------------------------------------------------------------------------------------
    def complete(self) -> list[Checkpoint]:
        """All complete checkpoints, the newest first."""
        return self.survey()[0]

    def survey(self) -> tuple[list[Checkpoint], list[Unreadable]]:
        """All complete checkpoints, the newest first, and those whose description cannot be read.

        Raises :class:`~elastrain.elastic.checkpoint.rules.NewerVersion`.
        """
        complete, damaged = [], []
        for name in self._store.listing().complete:
            try:
                complete.append(described(self._store.read(f"{name}/{DESCRIPTION}"), self.where, name))
            except (OSError, ValueError) as e:
                damaged.append(Unreadable(self, name, f"{DESCRIPTION}: {e}"))
        return sorted(complete, key=lambda c: c.order, reverse=True), damaged

    def load(self, checkpoint: Checkpoint, cut: Cut = WHOLE) -> dict[str, Any]:
        """The saved tree, or the part of it that ``cut`` describes; tensors on the CPU.

        Raises ``OSError`` if a digest differs, :class:`~elastrain.elastic.checkpoint.rules.NewerVersion`, and others
        for a damaged tree.
        """
        try:
            state: dict[str, Any] = self._format.load(self._reader(checkpoint), checkpoint.path, cut)
        except OSError:
            raise
        except Exception as e:
            if rules.is_newer(checkpoint.torch, torch.__version__):
                raise NewerVersion(checkpoint.path, f"torch {checkpoint.torch}", f"torch {torch.__version__}") from e
            raise
        return state

    def _reader(self, checkpoint: Checkpoint) -> Callable[[str], BinaryIO]:
        """Opens files of the checkpoint; what is read is verified."""
        known = self._digests(checkpoint)

        def opened(file: str) -> BinaryIO:
            path = f"{checkpoint.name}/{file}"
            if file not in known:
                raise FileNotFoundError(errno.ENOENT, "has no digest", f"{self.where}/{path}")
            return digests.verified(
                f"{self.where}/{path}", known[file], lambda start, end: self._store.read(path, start, end)
            )

        return opened

    def _digests(self, checkpoint: Checkpoint) -> dict[str, FileDigest]:
        return digests.of_json(self._store.read(f"{checkpoint.name}/{digests.FILE}").decode(errors="replace"))

    @property
    def lineage(self) -> str | None:
        """The lineage that may write here; None: no job has begun with this place."""
        try:
            return self._store.read(_LINEAGE).decode(errors="replace")
        except FileNotFoundError:
            return None

    # -- write -------------------------------------------------------------------------------------------------------
    def begin_lineage(self, after: str | None, others: Collection[str] = ()) -> str:
        """Take the place over, and return the name of the new lineage. Saves of earlier lineages are refused.

        ``after``: :attr:`lineage` before the caller chose its checkpoint. ``others``: lineages seen in other tiers.
        Raises :class:`StaleLineage` if another start has taken the place over since.
        """
        if self.lineage not in (None, after):
            raise self._stale(after)
        earlier = [after or "", *others, *(c.lineage for c in self.complete())]
        lineage = f"{1 + max(map(rules.number, earlier))}-{uuid.uuid4().hex[:12]}"
        self.adopt(lineage)
        return lineage

    def adopt(self, lineage: str) -> None:
        """From now on, saves of earlier lineages are refused here."""
        self._store.replace(_LINEAGE, lineage.encode())

    def save(
        self,
        state: dict[str, Any],
        *,
        step: int,
        generation: int,
        lineage: str,
        pace: Pace | None = None,
        writers: Writers = ALONE,
    ) -> Checkpoint | None:
        """Write ``state`` durably, then delete what is no longer needed. ``pace``: default: no rests.

        ``writers``: all ranks that write the checkpoint; this one writes its part, and waits for the others if it
        commits. Returns None on a rank that does not.

        A step that this lineage has saved already is not written again: replicas are equal. On a full disk, leftovers
        are deleted, and the write is tried once more. Raises :class:`StaleLineage` without writing, and ``OSError``
        with the system's own reason. On any failure the partial checkpoint is removed and all complete ones stay.
        """
        how: Any = {"syncs": self._store.syncs, "where": self.where}
        checkpoint, at = Checkpoint(step, generation, lineage, "", torch.__version__), pace or Pace(share=1.0)

        def write(folder: NewFolder) -> None:
            mine = self._format.write(state, folder.create, at, writers, **how)
            if parts := folder.parts(mine, at):
                self._format.finish(parts, folder.create, **how)

        self._refuse_stale(checkpoint.lineage)
        if same := self._saved(checkpoint):
            return same
        folder = NewFolder(self._store, checkpoint, writers)
        try:
            self._write(folder, checkpoint, write)
            if not writers.commits:
                return None
            folder.complete()
            self._refuse_stale(checkpoint.lineage)
            if same := self._saved(checkpoint):  # by another rank, meanwhile
                self._store.discard(folder.name)
                return same
            name = self._store.publish(folder.name, checkpoint)
        except BaseException as e:
            folder.abandon(e)
            raise
        saved = replace(checkpoint, path=f"{self.where}/{name}")
        self._tidy(saved)
        return saved

    def _write(self, folder: NewFolder, checkpoint: Checkpoint, write: Callable[[NewFolder], None]) -> None:
        try:
            write(folder)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._make_room(checkpoint):
                raise
            write(folder)

    def _saved(self, checkpoint: Checkpoint) -> Checkpoint | None:
        wanted = (checkpoint.step, checkpoint.lineage)
        return next((c for c in self.complete() if (c.step, c.lineage) == wanted), None)

    def _refuse_stale(self, lineage: str) -> None:
        owner = self.lineage
        if rules.is_stale(lineage, owner):
            raise self._stale(lineage)
        if owner != lineage and lineage:
            self.adopt(lineage)

    def _stale(self, lineage: str | None) -> StaleLineage:
        return StaleLineage(
            f"{self.where} belongs to lineage {self.lineage}, this is {lineage}: the job was restarted elsewhere"
        )

    # -- tidy up -----------------------------------------------------------------------------------------------------
    def set_aside(self, name: str) -> None:
        """No job resumes from this checkpoint any more, and a person can still look at it.

        The newest ``keep`` such ones stay, as long as the disk is not full. Raises nothing.
        """
        try:
            aside = self._store.set_aside(name)
        except OSError as e:
            log.warning("unreadable checkpoint cannot be set aside", path=f"{self.where}/{name}", error=str(e))
        else:
            log.warning("unreadable checkpoint set aside", path=f"{self.where}/{name}", now=aside)

    def _tidy(self, saved: Checkpoint) -> None:
        """After a save: delete surplus checkpoints and leftovers. Raises nothing: the checkpoint is there."""
        try:
            for old in rules.surplus(self.complete(), self._keep, saved):
                self.delete(old.name)
            found = self._store.listing()
            for name in found.aside[self._keep :]:
                self.delete(name, "a newer one is set aside")
            for partial in rules.leftovers(found.partial, saved)[: rules.SWEPT_PER_SAVE]:
                self.delete(partial.name, "left by a writer that was killed or replaced")
        except OSError as e:
            log.warning("checkpoints cannot be tidied up", path=self.where, error=str(e))

    def _make_room(self, checkpoint: Checkpoint) -> bool:
        """Delete what no job resumes from. Returns whether there was anything."""
        found = self._store.listing()
        partial: list[Partial] = rules.leftovers(found.partial, checkpoint)
        names = [*found.aside, *(p.name for p in partial)]
        return sum(self.delete(name, "the disk is full") for name in names) > 0

    def delete(self, name: str, why: str = "") -> bool:
        """Delete a checkpoint, and return whether it could be. ``why``: for the log; pruning is not worth a line."""
        try:
            self._store.delete(name)
        except OSError as e:
            log.warning("checkpoint cannot be deleted", path=f"{self.where}/{name}", error=str(e))
            return False
        if why:
            log.info("checkpoint deleted", path=f"{self.where}/{name}", why=why)
        return True


def tier_at(path: str, keep: int) -> Tier:
    """The tier of a directory or a URL. Raises ``RuntimeError`` as of :class:`ObjectStore`."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme in ("file", "local"):
        return Tier("volume", DirectoryStore(Path(rest if separator else path)), keep)
    from elastrain.elastic.checkpoint.objects import ObjectStore  # fsspec: only for those who use it

    return Tier("object store", ObjectStore(path), keep)
