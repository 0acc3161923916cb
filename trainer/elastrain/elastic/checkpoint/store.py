"""Where the files of checkpoints lie: a directory, or the objects of a store.

A checkpoint is a folder of files. It is complete if it has :data:`DESCRIPTION`: a reader sees none of it or all of it,
whenever its writer is killed.
"""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import BinaryIO, Protocol

from elastrain.elastic.checkpoint.decide import STEP, Checkpoint, Partial

DESCRIPTION = "elastrain.json"
LINEAGE = r"(?P<lineage>\d+-[0-9a-f]{12})"
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
    """The content of :data:`DESCRIPTION`. Earlier versions do not know the fields of a shard."""
    fields = {**asdict(checkpoint), "path": name}
    if checkpoint.shards == 1:
        del fields["shard"], fields["shards"]
    return json.dumps(fields).encode()


def step_of(name: str) -> str:
    """``step-000000120``, in whatever state the folder is."""
    step = STEP.search(name)
    assert step is not None, name
    return step[0]


def partial_of(name: str, match: re.Match[str]) -> Partial:
    """``match``: of a name with a step and perhaps a lineage."""
    return Partial(name, int(step_of(name)[len("step-") :]), match["lineage"] or "")
