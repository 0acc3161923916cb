"""Watch keys for ever: across restarts of etcd, failover, compaction and connections that die without a word."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastrain.etcd.errors import Compacted, EtcdDenied, EtcdError, EtcdUnavailable
from elastrain.etcd.kv import KeyValue
from elastrain.etcd.txn import Range
from elastrain.etcd.wire import Stream, messages

if TYPE_CHECKING:
    from elastrain.etcd.client import EtcdClient

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 3.0
"""How often a quiet watch asks etcd for a sign of life."""
SILENCE_SECONDS = 10.0
"""A watch that heard nothing for so long is replaced."""
_RETRY_SECONDS = 0.3
_DENIED_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Put:
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    revision: int


Event = Put | Delete


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes in the order in which they happened; of one range whole transactions, never half of one."""

    events: tuple[Event, ...]
    revision: int
    """State of etcd after these events."""
    snapshot: bool = False
    """The events lead from what was reported before to a full list read at ``revision`` (the first batch, and after a
    compaction). Reported even when there are none."""
    ranges: tuple[Range, ...] = ()
    """What a snapshot covers."""


@dataclass(frozen=True, slots=True)
class WatchState:
    """Whether the watch hears etcd now."""

    connected: bool
    error: EtcdError | None = None


class Watch:
    """Calls ``on_events`` with a snapshot of the ranges, then with every change, from one thread.

    Changes within a range come in order; changes of two ranges may overtake each other. A broken stream is resumed at
    the last revisions seen, so nothing is missed or repeated. When that history was compacted, or etcd came back
    without its data, the ranges are listed again and the difference is reported, deletions included. ``on_state`` hears
    the first failure of an outage and the recovery from it. A callback that raises is logged with its trace and the
    watch goes on.
    """

    def __init__(
        self,
        client: EtcdClient,
        ranges: Sequence[Range],
        on_events: Callable[[Batch], None],
        on_state: Callable[[WatchState], None],
        *,
        progress_seconds: float = PROGRESS_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._client = client
        self._ranges = tuple(ranges)
        self._wanted = self._ranges
        self._on_events = on_events
        self._on_state = on_state
        self._progress_seconds = progress_seconds
        self._silence_seconds = silence_seconds
        self._known: dict[str, int] = {}  # key -> mod_revision, to find what a new list no longer has
        self._listed = False  # nothing was listed yet, or history is gone
        self._revisions: list[int] = []  # of the last change seen, by range
        self._index: dict[int, int] = {}  # which range etcd's watch of this number is for
        self._heard = 0.0
        self._reported: bool | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name="etcd-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def move(self, ranges: Sequence[Range]) -> None:
        """Watch these ranges from now on. A snapshot of them follows; what they leave out is reported as deleted."""
        with self._lock:
            self._wanted = tuple(ranges)
            if self._stream is not None:
                self._stream.cancel()

    def close(self) -> None:
        """End it and wait (bounded) for the last callback. Must not be called from a callback."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join(timeout=self._client.timeout + 1.0)

    # ---- the thread ------------------------------------------------------------------------------------------------
    @property
    def _what(self) -> str:
        return f"watch {', '.join(r.key for r in self._ranges)}"

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                if self._wanted != self._ranges:
                    self._ranges, self._listed = self._wanted, False
            try:
                if not self._listed:
                    self._list()
                self._follow()
            except Compacted:
                self._listed = False
                continue
            except EtcdError as error:
                if self._closed.is_set() or self._client.wire.closed:
                    return
                if self._moved():
                    continue
                self._report(WatchState(connected=False, error=error))
                self._closed.wait(_DENIED_RETRY_SECONDS if isinstance(error, EtcdDenied) else _RETRY_SECONDS)

    def _moved(self) -> bool:
        with self._lock:
            return self._wanted != self._ranges

    def _list(self) -> None:
        kvs, revision = self._client.list_ranges(self._ranges)
        events: list[Event] = [Put(kv) for kv in kvs if self._known.get(kv.key) != kv.mod_revision]
        listed = {kv.key: kv.mod_revision for kv in kvs}
        events += [Delete(key, revision) for key in self._known if key not in listed]
        self._known = listed
        self._revisions = [revision] * len(self._ranges)
        self._listed = True
        self._report(WatchState(connected=True))
        self._deliver(Batch(tuple(events), revision, snapshot=True, ranges=self._ranges))

    def _follow(self) -> None:
        """Until the stream ends, which it always does by raising."""
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
            raise Compacted(self._what, "etcd has lost its data: its revision has gone back")
        if answer.canceled:
            raise stream.refused(answer.cancel_reason or "etcd cancelled the watch")
        self._report(WatchState(connected=True))
        if answer.created:  # etcd answers in the order in which it was asked, and chooses the number
            followed = [i for i, r in enumerate(self._ranges) if not r.listed_only]
            self._index[answer.watch_id] = followed[len(self._index)]
        if not answer.events:
            return
        index = self._index[answer.watch_id]
        events = [event for event in answer.events if event.kv.mod_revision > self._revisions[index]]
        if events:
            # Not the header's revision: while a watch catches up, that one is ahead of the events sent so far.
            self._revisions[index] = max(event.kv.mod_revision for event in events)
            self._deliver(Batch(tuple(self._event(event) for event in events), max(self._revisions)))

    def _event(self, event: Any) -> Event:
        if event.type == event.DELETE:
            key = event.kv.key.decode()
            self._known.pop(key, None)
            return Delete(key, event.kv.mod_revision)
        kv = KeyValue.of(event.kv)
        self._known[kv.key] = kv.mod_revision
        return Put(kv)

    def _requests(self, ended: threading.Event) -> Iterator[Any]:
        """What this side of the stream says; gRPC runs it in a thread of its own. It also listens for silence."""
        for index, watched in enumerate(self._ranges):
            if not watched.listed_only:
                # Not one later, and what was seen is skipped above: etcd stays silent about the progress of a watch
                # that begins in the future, and then a quiet watch looks like a dead one.
                yield watched.watch_request(self._revisions[index])
        while not ended.wait(self._progress_seconds):
            if time.monotonic() - self._heard > self._silence_seconds:
                log.warning("no sign of life from etcd for %.0f s, watching anew", self._silence_seconds)
                with self._lock:
                    if self._stream is not None:
                        self._stream.cancel()
                return
            yield messages.WatchRequest(progress_request=messages.WatchProgressRequest())

    def _deliver(self, batch: Batch) -> None:
        try:
            self._on_events(batch)
        except Exception:
            log.exception("watch callback failed")

    def _report(self, state: WatchState) -> None:
        if state.connected == self._reported:
            return
        self._reported = state.connected
        try:
            self._on_state(state)
        except Exception:
            log.exception("watch callback failed")
