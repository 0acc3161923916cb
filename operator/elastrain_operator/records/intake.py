"""Bounds what the records of jobs cost the operator, since each job writes its own: a tenant must not end the operator
for all others, and then its successor.

Between the watch's thread and the mirror's loop. Keys that no job has are dropped. A record that is too large is kept
without its content. Of several changes of a key only the last one is kept. The loop gets bounded portions, and the jobs
take turns. A job with too many records or unreadable ones, or that writes too much, is refused: nothing of it is kept
but its owner, and its user may write no more (``records/logins.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from elastrain.api.keys import JobKeys
from elastrain.etcd import Batch, Delete, Event, KeyValue, Put

LONGEST_KEY = 1024
"""Characters. Namespace, names of job and pod, and a UID have at most 300."""

_EVENT = 256
"""Bytes as which a change counts beside its value."""
WINDOW = 60.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, of ``job`` and ``all`` as the operator's memory holds them: see :func:`_kept`; else as etcd does."""

    record: int = 512 << 10
    """Bytes of one record. A target that asks 5,000 workers to leave takes 150 kB."""
    owner: int = 512
    """Bytes of the record that is kept also of a refused job: the name of its cluster."""
    member: int = 16 << 10
    """Bytes of a member's record, which takes 0.5 kB."""
    job: int = 40 << 20
    """Of one job's records. A job of 1,000 workers takes 5 MB."""
    unread: int = 32 << 20
    """Bytes of one job's records that the operator does not read, as written since its start. Checks of pairs of nodes
    write some kB."""
    churn: int = 64 << 20
    """Bytes that one job may write within :data:`WINDOW`: etcd keeps what was overwritten for about so long. The
    largest jobs write 1 MB."""
    all: int = 192 << 20
    """Of all records; 3,000 jobs of 4 workers take 75 MB. Beyond it, the largest job is refused."""
    unreadable: int = 100
    """Records of one job within :data:`WINDOW` that cannot be read: each is logged."""
    changes: int = 100
    """Changes of one job until the next job's turn."""
    portion: int = 512 << 10
    """Bytes after which a portion for the loop ends. The most expensive ones take 0.1 s."""


class Intake:
    """Thread-safe: the watch's thread sifts and puts, the loop takes."""

    def __init__(self, limits: Limits = Limits(), clock: Callable[[], float] = time.monotonic) -> None:
        """``clock()``: seconds."""
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._jobs: dict[JobKeys, _JobRecords] = {}
        self._changed: dict[JobKeys, None] = {}  # in the order of their turns
        self._bytes = 0
        self._revision = 0
        self._listed: set[JobKeys] | None = None  # whose first turn comes before the end of a list; None: no list ends
        self._announced = False  # the loop knows that there is something to take
        self.refused: dict[JobKeys, str] = {}
        """Jobs whose records are not kept, and why. Replaced, never changed."""
        self.dropped = 0
        """Records that were not kept: of refused jobs, and under keys that no job has."""

    def sift(self, kv: KeyValue) -> KeyValue | None:
        """The record as it is kept, without its content if it is too large; None: it is not kept. To be called before
        the record is noted anywhere: a list of all records may be larger than the memory."""
        keys = JobKeys.of(kv.key)
        with self._lock:
            known = keys is not None and _is_known(keys, kv.key)
            if keys is not None and keys not in self.refused:
                self._count(keys, len(kv.key) + len(kv.value), known=known)
            if keys is None or not known or (keys in self.refused and kv.key != keys.owner):
                self.dropped += 1
                return None
            most = self._most(keys, kv.key)
            kept = kv if len(kv.value) <= most else replace(kv, value=b"")
            job = self._jobs.setdefault(keys, _JobRecords())
            self._bytes += job.size(kv.key, _kept(kept))
            self._bound(keys, job)
            return kept

    def put(self, batch: Batch) -> bool:
        """Take in changes of sifted records; returns whether the loop has to take something."""
        with self._lock:
            for event in batch.events:
                key = event.kv.key if isinstance(event, Put) else event.key
                keys = JobKeys.of(key)
                if keys is not None:
                    self._note(keys, key, event)
            if batch.snapshot:
                self._listed = set(self._changed)
            self._revision = batch.revision
            return self._tell()

    def tell(self) -> bool:
        """Whether the loop has to look, after records that are not kept: their job may have been refused for them."""
        with self._lock:
            return self._tell()

    def take(self) -> Batch:
        """The next changes, in order within a job: a bounded portion of them, of which each job has its turn."""
        with self._lock:
            events: list[Event] = []
            left = self._limits.portion
            while self._changed and left > 0:
                keys = next(iter(self._changed))
                job = self._jobs[keys]
                del self._changed[keys]
                for event in job.next(self._limits.changes):
                    events.append(event)
                    left -= _EVENT + (len(event.kv.value) if isinstance(event, Put) else 0)
                    if left <= 0:
                        break
                if job.changes:
                    self._changed[keys] = None
                elif not job.sizes:
                    del self._jobs[keys]
                if self._listed is not None:
                    self._listed.discard(keys)
            ends = self._listed is not None and not self._listed
            self._listed = None if ends else self._listed
            self._announced = bool(self._changed)
            return Batch(tuple(events), self._revision, ends)

    def unreadable(self, keys: JobKeys) -> None:
        """A taken record of this job cannot be read."""
        with self._lock:
            job = self._jobs.get(keys)
            if job is not None and keys not in self.refused:
                job.unreadable += 1
                if job.unreadable > (most := self._limits.unreadable):
                    self._refuse(keys, f"it has written more than {most} within {WINDOW:g} s that cannot be read")

    @property
    def more(self) -> bool:
        """Whether changes are left to take."""
        with self._lock:
            return bool(self._changed)

    # ---- inside, under the lock --------------------------------------------------------------------------------------
    def _tell(self) -> bool:
        tell = not self._announced and bool(self._changed or self._listed is not None)
        self._announced = self._announced or tell
        return tell

    def _note(self, keys: JobKeys, key: str, event: Event) -> None:
        if keys in self.refused:
            if key != keys.owner:
                return
            if isinstance(event, Delete):  # the job is gone, and its records with it
                self.refused = {k: why for k, why in self.refused.items() if k != keys}
        job = self._jobs.setdefault(keys, _JobRecords())
        if isinstance(event, Delete):
            self._bytes += job.size(key, 0)
        job.change(key, event)
        self._changed[keys] = None

    def _most(self, keys: JobKeys, key: str) -> int:
        """Bytes of a record's value."""
        if key == keys.owner:
            return self._limits.owner
        return self._limits.member if key.startswith(keys.members) else self._limits.record

    def _count(self, keys: JobKeys, written: int, *, known: bool) -> None:
        """A job has written so many bytes, under a key that the operator reads or under another one."""
        job, now = self._jobs.setdefault(keys, _JobRecords()), self._clock()
        if now - job.since > WINDOW:
            job.since, job.written, job.unreadable = now, 0, 0
        job.written += written
        job.unread += 0 if known else written
        if job.written > self._limits.churn:
            self._refuse(keys, f"it has written more than {self._limits.churn >> 10} KiB within {WINDOW:g} s")
        elif job.unread > self._limits.unread:
            self._refuse(keys, f"it has written more than {self._limits.unread >> 10} KiB under keys of its own")

    def _bound(self, keys: JobKeys, job: _JobRecords) -> None:
        if job.bytes > self._limits.job:
            self._refuse(keys, f"its records take more than {self._limits.job >> 20} MiB of memory")
        while self._bytes > self._limits.all:
            largest = max(self._jobs.keys() - self.refused.keys(), key=lambda k: self._jobs[k].bytes, default=None)
            if largest is None:
                return  # nothing is left but owners, which are small
            share, most = self._jobs[largest].bytes >> 20, self._limits.all >> 20
            why = f"the records of all jobs take more than {most} MiB of memory, and its own {share} MiB the most"
            self._refuse(largest, why)

    def _refuse(self, keys: JobKeys, why: str) -> None:
        job = self._jobs[keys]
        self.refused = {**self.refused, keys: why}
        for key in [key for key in job.sizes if key != keys.owner]:
            self._bytes += job.size(key, 0)
            job.change(key, Delete(key, self._revision))
        self._changed[keys] = None


@dataclass(slots=True)
class _JobRecords:
    """The records of one job: how large they are, which changes are not taken yet, and what it has written."""

    sizes: dict[str, int] = field(default_factory=dict)
    changes: dict[str, Event] = field(default_factory=dict)
    bytes: int = 0
    since: float = 0.0
    written: int = 0
    """Bytes, after the time ``since``."""
    unread: int = 0
    unreadable: int = 0
    """Records, after that time."""

    def size(self, key: str, size: int) -> int:
        """Note a record's size, 0: it is gone; returns by how much the job has grown."""
        grown = size - self.sizes.pop(key, 0)
        if size:
            self.sizes[key] = size
        self.bytes += grown
        return grown

    def change(self, key: str, event: Event) -> None:
        self.changes.pop(key, None)  # the last change comes last
        self.changes[key] = event

    def next(self, most: int) -> Iterator[Event]:
        for key in list(islice(self.changes, most)):
            yield self.changes.pop(key)


def _kept(kv: KeyValue) -> int:
    """About the bytes of memory that a record takes. Decoded, it takes 7 to 20 times as much as in etcd, most of it for
    the objects that its commas separate."""
    return len(kv.key) + len(kv.value) + 150 * kv.value.count(b",")


def _is_known(keys: JobKeys, key: str) -> bool:
    """Whether the operator reads the record under ``key``."""
    if len(key) > LONGEST_KEY:
        return False
    single = {
        keys.target,
        keys.owner,
        keys.generation,
        keys.leader,
        keys.ended,
        keys.progress,
        keys.closed,
        keys.issued,
    }
    return key in single or key.startswith((keys.members, keys.rosters))
