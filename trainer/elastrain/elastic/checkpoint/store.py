"""Where the files of checkpoints lie: a directory, or the objects of a store.

A checkpoint is a folder of files. It is complete if it has :data:`DESCRIPTION`: a reader sees none of it or all of it,
whenever its writer is killed.

A directory of a file system is a volume that all workers mount. Layout::

    <path>/step-000000120/                        one complete checkpoint: torch's distributed checkpoint (DCP),
                                                  digests.json and elastrain.json
    <path>/LINEAGE                                the lineage that may write here
    <path>/unreadable-step-000000120.<random>/    set aside: it could not be read when a job had to resume
    <path>/.step-000000120.<lineage>.<random>/    being written, or left by a writer that was killed

A checkpoint becomes visible by one rename, so a half-written one is never loaded. A directory is renamed before its
files are deleted, so a half-deleted checkpoint is never loaded either, and of a writer and the deletion of its partial
directory one wins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

from elastrain.elastic.checkpoint import digests
from elastrain.elastic.checkpoint.rules import STEP, Checkpoint, NewerVersion, Partial

DESCRIPTION = "elastrain.json"
FORMAT = 1
"""Of all files of a checkpoint. A version that changes one counts it up."""
LINEAGE = r"(?P<lineage>\d{1,18}-[0-9a-f]{12})"
RANDOM = r"[0-9a-f]{8}"


@dataclass(frozen=True, slots=True)
class Listing:
    """Names of the folders of a place."""

    complete: list[str]
    """Complete, unless its description is damaged."""
    partial: list[Partial]
    """Not complete: being written, being deleted, or left behind."""
    aside: list[str]
    """Set aside, the newest first."""


class Store(Protocol):
    """A place for the checkpoints of one job. Every method may raise ``OSError`` with the path in it."""

    where: str
    """The directory or URL, for messages."""
    syncs: bool
    """Whether a file must be flushed to the disk by ``fsync``."""

    def listing(self) -> Listing:
        """The folders in the place; empty if it does not exist."""
        ...

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of a file. ``path``: relative. Raises ``FileNotFoundError``."""
        ...

    def files(self, folder: str) -> set[str]:
        """Names of the files in a folder; empty if it does not exist."""
        ...

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file: a reader sees the old or the new content, also after a crash."""
        ...

    def begin(self, checkpoint: Checkpoint, attempt: str = "") -> str:
        """The name of a partial folder: of the one of this ``attempt``, or a new one."""
        ...

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Write a file of a partial folder."""
        ...

    def publish(self, partial: str, checkpoint: Checkpoint) -> str:
        """Make the folder complete, if it still has all its files; returns its name."""
        ...

    def discard(self, partial: str) -> None:
        """Delete a partial folder that was not published. Raises nothing."""
        ...

    def set_aside(self, name: str) -> str:
        """Make a complete folder one that no job resumes from; returns its name."""
        ...

    def delete(self, name: str) -> None:
        """Delete a folder; one whose deletion is cut off is not complete."""
        ...


def describe(checkpoint: Checkpoint, name: str) -> bytes:
    """The content of :data:`DESCRIPTION`."""
    fields = {**asdict(checkpoint), "path": name, "format": FORMAT}
    return json.dumps({**fields, "digest": _digest(fields)}).encode()


def described(raw: bytes, where: str, name: str) -> Checkpoint:
    """The checkpoint ``name`` of which ``raw`` is the description.

    Raises ``ValueError`` if it is damaged, and :class:`NewerVersion` if it has another format.
    """
    try:
        found = digests.parsed(raw)
        digest = found.pop("digest")
        if digest != _digest(found):
            raise ValueError("damaged: its digest differs")
        if found.pop("format") != FORMAT:
            raise NewerVersion(f"{where}/{name}", "a newer elastrain", f"one for format {FORMAT}")
        checkpoint = Checkpoint(**{**found, "path": f"{where}/{name}"})
        assert type(checkpoint.step) is int and checkpoint.order
    except (AssertionError, AttributeError, KeyError, RecursionError, TypeError) as e:
        raise ValueError(f"damaged: {e!r}") from e
    return checkpoint


def _digest(fields: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode())


def step_of(name: str) -> str:
    """``step-000000120``, in whatever state the folder is."""
    step = STEP.search(name)
    assert step is not None, name
    return step[0]


def partial_of(name: str, match: re.Match[str]) -> Partial:
    """``match``: of a name with a step and perhaps a lineage."""
    return Partial(name, int(step_of(name)[len("step-") :]), match["lineage"] or "")


_COMPLETE = re.compile(rf"{STEP.pattern}(\.[0-9a-f.-]+)?")
_PARTIAL = re.compile(rf"\.{STEP.pattern}\.((?P<lineage>.*)\.)?{RANDOM}")
_ASIDE = re.compile(rf"unreadable-{STEP.pattern}\.{RANDOM}")


class DirectoryStore:
    """The checkpoints in one directory. As of :class:`~elastrain.elastic.checkpoint.store.Store`."""

    syncs = True

    def __init__(self, path: Path) -> None:
        """The directory is made by the first write."""
        self.path, self.where = path, str(path)

    def listing(self) -> Listing:
        """As of ``Store``."""
        names = self._names()
        return Listing(
            complete=[n for n in names if _COMPLETE.fullmatch(n) and not (self.path / n).is_file()],
            partial=[partial_of(n, found) for n in names if (found := _PARTIAL.fullmatch(n))],
            aside=sorted((n for n in names if _ASIDE.fullmatch(n)), key=self._changed, reverse=True),
        )

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """As of ``Store``."""
        with (self.path / path).open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def files(self, folder: str) -> set[str]:
        """As of ``Store``."""
        try:
            return {path.name for path in (self.path / folder).iterdir()}
        except FileNotFoundError:
            return set()

    def replace(self, path: str, content: bytes) -> None:
        """As of ``Store``."""
        final = self.path / path
        if final.parent == self.path:  # a partial folder that is gone was swept by a later writer
            self.path.mkdir(parents=True, exist_ok=True)
        partial = final.with_name(f".{final.name}.{_random()}")
        with partial.open("wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        partial.replace(final)

    def begin(self, checkpoint: Checkpoint, attempt: str = "") -> str:
        """As of ``Store``."""
        name = f".{_final(checkpoint)}.{checkpoint.lineage}.{attempt or _random()}"
        (self.path / name).mkdir(parents=True, exist_ok=bool(attempt))
        return name

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """As of ``Store``."""
        with (self.path / path).open("wb") as file:
            yield file

    def publish(self, partial: str, checkpoint: Checkpoint) -> str:
        """As of ``Store``. Another checkpoint of the step stays, under another name, until it is one too many."""
        directory, name = self.path / partial, _final(checkpoint)
        description = directory / DESCRIPTION
        with description.open("wb") as file:  # in place: a partial directory is not read
            file.write(describe(checkpoint, name))
            file.flush()
            os.fsync(file.fileno())
        if (self.path / name).exists():
            (self.path / name).rename(self.path / f"{name}.{_random()}")
        directory.rename(self.path / name)
        return name

    def discard(self, partial: str) -> None:
        """As of ``Store``."""
        shutil.rmtree(self.path / partial, ignore_errors=True)

    def set_aside(self, name: str) -> str:
        """As of ``Store``."""
        aside = f"unreadable-{step_of(name)}.{_random()}"
        (self.path / name).rename(self.path / aside)
        return aside

    def delete(self, name: str) -> None:
        """As of ``Store``."""
        trash = self.path / f".{step_of(name)}.deleted.{_random()}"
        (self.path / name).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self.path.iterdir())
        except FileNotFoundError:
            return []

    def _changed(self, name: str) -> float:
        return (self.path / name).stat().st_ctime


def _final(checkpoint: Checkpoint) -> str:
    return f"step-{checkpoint.step:09d}"


def _random() -> str:
    return uuid.uuid4().hex[:8]
