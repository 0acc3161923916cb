"""Watches keys without end: across restarts of etcd, failover, compaction and silently dead connections."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastrain import threads
from elastrain.etcd.errors import Compacted, EtcdDenied, EtcdError, EtcdUnavailable, TooLarge
from elastrain.etcd.kv import KeyValue
from elastrain.etcd.protocol import messages
from elastrain.etcd.txn import Range
from elastrain.etcd.wire import Stream, Wire

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 3.0
"""Seconds between progress requests on a quiet watch."""
SILENCE_SECONDS = 10.0
"""Seconds of silence after which a watch is replaced."""
_RETRY_SECONDS = 0.3
_DENIED_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Put:
    """A key was written."""

    kv: KeyValue


@dataclass(frozen=True, slots=True)
class Delete:
    """A key was deleted, or its lease ended."""

    key: str
    revision: int


Event = Put | Delete


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes in order; within one range in complete transactions."""

    events: tuple[Event, ...]
    revision: int
    """Revision of etcd after these events."""
    snapshot: bool = False
    """The events lead from the state reported before to a full list at ``revision`` (the first batch, and after a
    broken stream). Reported even if empty."""
    ranges: tuple[Range, ...] = ()
    """Ranges of a snapshot."""

    def has_lost(self, before: int) -> bool:
        """Whether etcd has lost data since revision ``before``: all of it, or its newest after the restore of a
        snapshot."""
        return self.snapshot and self.revision < before


@dataclass(frozen=True, slots=True)
class WatchState:
    """Whether the watch is connected to etcd."""

    connected: bool
    error: EtcdError | None = None


class WatchCalls(Protocol):
    """What a watch uses of :class:`elastrain.etcd.EtcdClient`."""

    wire: Wire
    timeout: float

    def list_ranges(self, ranges: Sequence[Range]) -> tuple[list[KeyValue], int]: ...

    def list_pages(self, listed: Range, revision: int = 0) -> Iterator[tuple[list[KeyValue], int]]: ...


Sift = Callable[[KeyValue], KeyValue | None]
"""A record as the caller wants it reported; None: not at all."""


class Watch:
    """Calls ``on_events`` with a snapshot of the ranges, then with every change, from one thread.

    Changes within a range arrive in order; changes of two ranges may overtake each other. After a broken stream the
    watch lists the ranges again and reports the difference, deletions included: no record is missed or repeated. It
    resumes at no revision, since a restored etcd may have reached it with other records. ``on_state`` reports each
    kind of failure of an outage, and its end. After an exception of ``on_events`` the watch begins anew, and reports
    the same changes again.
    """

    def __init__(
        self,
        client: WatchCalls,
        ranges: Sequence[Range],
        on_events: Callable[[Batch], None],
        on_state: Callable[[WatchState], None],
        *,
        sift: Sift | None = None,
        progress_seconds: float = PROGRESS_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """``sift``: called with each record before the watch notes it. With it, lists are read in pages, and neither a
        list nor a change is too large for the watch."""
        self._sift = sift
        self._client = client
        self._ranges = tuple(ranges)
        self._wanted = self._ranges
        self._on_events = on_events
        self._on_state = on_state
        self._progress_seconds = progress_seconds
        self._silence_seconds = silence_seconds
        self._known: dict[str, int] = {}  # key -> hash of its record, to find what a new list changes or lacks
        self._revisions: list[int] = []  # of the last change, by range
        self._index: dict[int, int] = {}  # etcd's watch id -> range
        self._heard = 0.0
        self._reported: tuple[bool, type] | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._thread = threads.Thread(self._run, name="etcd-watch")

    def start(self) -> None:
        self._thread.start()

    def move(self, ranges: Sequence[Range]) -> None:
        """Replace the watched ranges. A snapshot follows; keys outside of the new ranges are reported as deleted."""
        with self._lock:
            self._wanted = tuple(ranges)
            if self._stream is not None:
                self._stream.cancel()

    def close(self) -> None:
        """End the watch and wait (bounded) for the last callback. Must not be called from a callback."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join(timeout=self._client.timeout + 1.0)

    # ---- the thread --------------------------------------------------------------------------------------------------
    @property
    def _what(self) -> str:
        return f"watch {', '.join(r.key for r in self._ranges)}"

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                self._ranges = self._wanted
            try:
                self._list()
                self._follow()
            except Compacted:
                continue
            except TooLarge:  # a list in pages has only the last content of each key
                self._closed.wait(_RETRY_SECONDS)
            except EtcdError as error:
                if self._closed.is_set() or self._client.wire.closed:
                    return
                if self._moved():
                    continue
                self._report(WatchState(connected=False, error=error))
                self._closed.wait(_DENIED_RETRY_SECONDS if isinstance(error, EtcdDenied) else _RETRY_SECONDS)
            except Exception as error:
                # A bug, or an answer that nothing expects. It must neither end the watch nor leave it connected: its
                # reader would act on old records for ever.
                log.exception("the watch failed and begins anew")
                fault = EtcdUnavailable(self._client.wire.endpoint, self._what, f"{type(error).__name__}: {error}")
                self._report(WatchState(connected=False, error=fault))
                self._closed.wait(_DENIED_RETRY_SECONDS)

    def _moved(self) -> bool:
        with self._lock:
            return self._wanted != self._ranges

    def _list(self) -> None:
        kvs, revision = self._listed_now()
        listed = {kv.key: hash(kv) for kv in kvs}
        events: list[Event] = [Put(kv) for kv in kvs if self._known.get(kv.key) != listed[kv.key]]
        events += [Delete(key, revision) for key in self._known if key not in listed]
        self._known = listed
        self._revisions = [revision] * len(self._ranges)
        self._report(WatchState(connected=True))
        self._deliver(Batch(tuple(events), revision, snapshot=True, ranges=self._ranges))

    def _listed_now(self) -> tuple[list[KeyValue], int]:
        if self._sift is None:
            return self._client.list_ranges(self._ranges)
        kept: list[KeyValue] = []
        read = 0
        for listed in self._ranges:
            for page, at in self._client.list_pages(listed, read):  # all ranges at one revision
                kept += filter(None, map(self._sift, page))
                read = at
                page.clear()  # before the next is read
        return kept, read

    def _follow(self) -> None:
        """Process the stream until it ends, which always raises."""
        self._heard = time.monotonic()
        self._index.clear()
        ended = threading.Event()
        stream = self._client.wire.stream("watch", "Watch", self._requests(ended), what=self._what)
        with self._lock:
            self._stream = stream
        try:
            if self._closed.is_set() or self._moved():
                return
            for answer in stream:
                self._heard = time.monotonic()
                self._take(answer, stream)
        finally:
            ended.set()
            stream.cancel()
        raise EtcdUnavailable(self._client.wire.endpoint, self._what, "etcd ended the stream")

    def _take(self, answer: Any, stream: Stream) -> None:
        if answer.compact_revision:
            raise Compacted(self._what, f"compacted at {answer.compact_revision}")
        if answer.created and answer.header.revision < max(self._revisions):
            raise Compacted(self._what, "etcd has lost its data: its revision decreased")
        if answer.canceled:
            raise stream.refused(answer.cancel_reason or "etcd cancelled the watch")
        self._report(WatchState(connected=True))
        if answer.created:  # etcd answers in order and assigns the id
            followed = [i for i, r in enumerate(self._ranges) if not r.listed_only]
            self._index[answer.watch_id] = followed[len(self._index)]
        if not answer.events:
            return
        index = self._index[answer.watch_id]
        events = [event for event in answer.events if event.kv.mod_revision > self._revisions[index]]
        if events:
            # Not the header's revision, which is ahead of the events while a watch catches up.
            self._revisions[index] = max(event.kv.mod_revision for event in events)
            kept = tuple(seen for seen in map(self._event, events) if seen is not None)
            if kept or self._sift is None:
                self._deliver(Batch(kept, max(self._revisions)))

    def _event(self, event: Any) -> Event | None:
        if event.type == event.DELETE:
            key = event.kv.key.decode()
            self._known.pop(key, None)
            return Delete(key, event.kv.mod_revision)
        kv: KeyValue | None = KeyValue.of(event.kv)
        if kv is not None and self._sift is not None:
            kv = self._sift(kv)
        if kv is None:
            return None
        self._known[kv.key] = hash(kv)
        return Put(kv)

    def _requests(self, ended: threading.Event) -> Iterator[Any]:
        """The requests of this side of the stream, in gRPC's own thread. It also detects silence."""
        for index, watched in enumerate(self._ranges):
            if not watched.listed_only:
                # Not one later (the check above skips known events): etcd reports no progress on a watch that begins in
                # the future, and a quiet watch would look dead.
                yield watched.watch_request(self._revisions[index])
        while not ended.wait(self._progress_seconds):
            if time.monotonic() - self._heard > self._silence_seconds:
                log.warning("etcd silent for %.0f s; restarting the watch", self._silence_seconds)
                with self._lock:
                    if self._stream is not None:
                        self._stream.give_up()
                return
            yield messages.WatchRequest(progress_request=messages.WatchProgressRequest())

    def _deliver(self, batch: Batch) -> None:
        try:
            self._on_events(batch)
        except Exception:
            keys = (event.kv.key if isinstance(event, Put) else event.key for event in batch.events)
            self._known.update(dict.fromkeys(keys, 0))  # the next list reports them again
            raise

    def _report(self, state: WatchState) -> None:
        if (reported := (state.connected, type(state.error))) == self._reported:
            return
        self._reported = reported
        try:
            self._on_state(state)
        except Exception:
            log.exception("watch callback failed")
