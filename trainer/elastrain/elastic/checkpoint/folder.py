"""The folder of a checkpoint that is being written, by one rank or by several.

Ranks that write parts of one checkpoint meet in its folder and nowhere else, so that training never waits for them.
Each hands in a note when its part is there: the entries of the metadata and the digests, or why there is none. The rank
that commits waits for all notes, with a bound.

A writer takes little processor time from the training that runs beside it (:class:`Pace`).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from elastrain.elastic.checkpoint import digests
from elastrain.elastic.checkpoint.digests import DigestingWriter, FileDigest
from elastrain.elastic.checkpoint.division import ALONE, Writers
from elastrain.elastic.checkpoint.rules import Checkpoint
from elastrain.elastic.checkpoint.store import Store
from elastrain.elastic.encoding import decode, encode

log = structlog.get_logger(__name__)

LEAST_SECONDS = 30.0
TIMES_LONGER = 3.0
"""Parts are of equal size: other ranks need about as long as this one, from the same step on. It waits for them at
least so many seconds, and so many times its own."""
_LOOKS = 0.02, 1.0
"""Shortest and longest pause between two looks, in seconds."""


@dataclass(frozen=True, slots=True)
class _Note:
    """Of a part that is written."""

    written: Any
    """As of :class:`~elastrain.elastic.checkpoint.dcp.Written`."""
    digests: dict[str, FileDigest]


class NewFolder:
    """The files of a checkpoint that is being written, and their digests."""

    def __init__(self, store: Store, checkpoint: Checkpoint, writers: Writers = ALONE) -> None:
        self.name = store.begin(checkpoint, writers.attempt)
        self._store, self._writers = store, writers
        self._digests = dict[str, FileDigest]()
        self._began = time.monotonic()

    @contextmanager
    def create(self, file: str) -> Iterator[DigestingWriter]:
        """Write a file."""
        with self._store.create(f"{self.name}/{file}") as raw:
            with DigestingWriter(raw) as stream:
                yield stream
            self._digests[file] = stream.digest

    def parts(self, mine: Any, pace: Pace) -> list[Any]:
        """All parts of the checkpoint, by the number of their writer, on the rank that commits; empty on any other.

        ``mine``: written. Raises ``OSError`` if a part is missing.
        """
        if not self._writers.attempt:
            return [mine]
        if not self._writers.commits:
            self._hand_in(_Note(mine, self._digests))
            return []
        found, limit = dict[int, _Note](), max(LEAST_SECONDS, TIMES_LONGER * (time.monotonic() - self._began))
        ended, pause = time.monotonic() + limit, _LOOKS[0]
        pace.waits = True
        self._gather(found)
        while (missing := self._writers.count - 1 - len(found)) and time.monotonic() < ended and pace.wait(pause):
            pause = min(2 * pause, _LOOKS[1])
            self._gather(found)
        pace.waits = False
        if missing:
            raise OSError(
                errno.EIO,
                f"{missing} of {self._writers.count} parts were not written within {limit:.0f} s, or before the next "
                "save: their ranks were lost or are slow",
                f"{self._store.where}/{self.name}",
            )
        for note in found.values():
            self._digests.update(note.digests)
        written = {self._writers.number: mine, **{number: note.written for number, note in found.items()}}
        return [written[number] for number in sorted(written)]

    def complete(self) -> None:
        """All files are written: add their digests."""
        self._store.replace(f"{self.name}/{digests.FILE}", digests.to_json(self._digests).encode())

    def abandon(self, error: BaseException) -> None:
        """The checkpoint will not be complete. Raises nothing."""
        if self._writers.commits:
            self._store.discard(self.name)
            return
        try:
            self._hand_in(str(error))
        except OSError as e:
            log.warning("the rank that commits is not told why a part is missing", error=str(e))

    def _hand_in(self, note: _Note | str) -> None:
        self._store.replace(f"{self.name}/{_note_of(self._writers.number)}", encode(note))

    def _gather(self, found: dict[int, _Note]) -> None:
        """Add the notes that are new to those ``found``, by number. Raises ``OSError`` with the reason of a part that
        will be missing."""
        files = self._store.files(self.name)
        for number in range(self._writers.count):
            if number not in found and _note_of(number) in files:
                note = decode(self._store.read(f"{self.name}/{_note_of(number)}"))
                if not isinstance(note, _Note):
                    raise OSError(errno.EIO, f"part {number} was not written: {note}")
                found[number] = note


def _note_of(number: int) -> str:
    return f"part-{number:05d}"


SHARE = 0.25
"""Part of its time that the writing thread works while nothing waits for the save. Several steps then take a little
longer, instead of one that takes twice as long."""
REST_SECONDS = 30.0
"""Bound of all rests of one save: a save of many gigabytes takes minutes by itself, and should end before the next."""


class Pace:
    """The pace of one save. Its thread calls :meth:`rest` between two pieces of work, and :meth:`wait` for the parts of
    other ranks; any thread calls :meth:`hurry` and :meth:`end`."""

    def __init__(self, share: float = SHARE) -> None:
        """``share``: part of its time that the thread works, in (0, 1]."""
        self._rest = 1 / share - 1
        self._left = REST_SECONDS
        self._hurry, self._over = threading.Event(), threading.Event()
        self._worked = 0.0
        self.moved = time.monotonic()
        """When the work has begun, or made progress last."""
        self.waits = False
        """Whether this rank has written its part and waits for those of others."""

    def begin(self) -> None:
        """The thread's work begins now."""
        self._worked = time.thread_time()

    def rest(self) -> None:
        """Sleep in proportion to the processor time used since the last rest; time spent waiting for a disk is free."""
        seconds = min((time.thread_time() - self._worked) * self._rest, self._left)
        self._left -= seconds
        self._hurry.wait(seconds)
        self._worked, self.moved = time.thread_time(), time.monotonic()

    def hurry(self) -> None:
        """End the present rest and allow no further one: training waits for the save. Any thread."""
        self._hurry.set()

    def wait(self, seconds: float) -> bool:
        """For parts of other ranks. Returns whether to go on waiting."""
        self.moved = time.monotonic()
        return not self._over.wait(seconds)

    def end(self) -> None:
        """All other ranks are about to write another checkpoint: a part that is missing now never comes."""
        self._over.set()
