"""A process's side of etcd: the lease with its keys, the watch and single calls, with their retries.

The order of calls and the waits are those of ``elastrain.etcd.lease`` and ``elastrain.etcd.watch``, whose threads block
in calls; here each call is two messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elastrain.etcd import Batch, Delete, EtcdError, EtcdUnavailable, Event, KeyValue, Put, Range
from elastrain.etcd.errors import Compacted, LeaseLost
from sim.clock import Timer
from sim.etcd import PLACE, Etcd, Watcher
from sim.network import Network, Refused, Stream
from sim.process import Process

RETRY = 0.3


def unavailable(what: str) -> EtcdUnavailable:
    return EtcdUnavailable("etcd:2379", what, "simulated")


class Client:
    """Single calls."""

    def __init__(self, process: Process, network: Network, etcd: Etcd) -> None:
        self.process, self.network, self.etcd = process, network, etcd

    def call(
        self,
        what: str,
        request: Callable[[], Any],
        answered: Callable[[Any], None],
        failed: Callable[[EtcdError], None],
        timeout: float = 5.0,
    ) -> None:
        def refused(error: Exception) -> None:
            failed(unavailable(what) if isinstance(error, Refused) else error)  # type: ignore[arg-type]

        self.network.call(self.process, PLACE, request, answered, refused, timeout)


class LeaseKeeper:
    """One lease at a time, and the keys that live by it."""

    def __init__(
        self, client: Client, ttl: float, on_state: Callable[[EtcdError | None], None], on_answer: Callable[[], None]
    ) -> None:
        """``on_answer`` is called after each answer of etcd, and after each failed call."""
        self.id = 0
        self.ttl = ttl
        self.confirmed = client.process.clock.now
        self._client, self._on_state, self._on_answer = client, on_state, on_answer
        self._wanted: dict[str, bytes] = {}
        self._deferred: dict[str, bytes] = {}
        self._written: dict[str, bytes | None] = {}
        self._doubted: set[str] = set()
        self._busy = self._closed = self._failing = False
        self._next_beat = 0.0
        self._timer: Timer | None = None

    @property
    def unconfirmed(self) -> float:
        """Seconds since etcd last confirmed the lease."""
        return self._client.process.clock.now - self.confirmed

    @property
    def is_clean(self) -> bool:
        return self._written == self._wanted

    def set(self, key: str, value: bytes, *, later: bool = False) -> None:
        if later and key in self._wanted:
            self._deferred[key] = value
            return
        self._deferred.pop(key, None)
        self._wanted[key] = value
        self.kick()

    def unset(self, key: str) -> None:
        self._wanted.pop(key, None)
        self._deferred.pop(key, None)
        self.kick()

    def rewrite(self, key: str) -> None:
        self._take_deferred()
        self._written[key] = None
        self._doubted.add(key)
        self.kick()

    def _take_deferred(self) -> None:
        self._wanted |= self._deferred
        self._deferred.clear()

    def close(self) -> None:
        """Revoke it: the keys vanish."""
        if self._closed:
            return
        self._closed = True
        if self.id:
            number = self.id
            self._client.call("revoke", lambda: self._client.etcd.revoke(number), lambda _: None, lambda _: None)

    def kick(self) -> None:
        if not self._busy and not self._closed:
            if self._timer:
                self._timer.cancel()
            self._turn()

    def _turn(self) -> None:
        self._timer = None
        if self._busy or self._closed:
            return
        now, etcd = self._client.process.clock.now, self._client.etcd
        if not self.id:
            self._call("grant", lambda: etcd.grant(self.ttl), self._granted)
        elif now >= self._next_beat:
            number = self.id
            self._call("renew", lambda: etcd.keepalive(number), self._renewed)
        elif (change := self._next_change()) is not None:
            self._write(*change)
        else:
            self._report(None)
            self._next_beat = self.confirmed + self.ttl / 3
            self._timer = self._client.process.at(self._next_beat, self._turn)

    def _call(self, what: str, request: Callable[[], Any], done: Callable[[Any, float], None]) -> None:
        self._busy = True
        sent = self._client.process.clock.now

        def answered(value: Any) -> None:
            self._busy = False
            done(value, sent)
            self._on_answer()
            self._turn()

        self._client.call(what, request, answered, self._failed, max(0.5, self.ttl / 3))

    def _granted(self, number: int, sent: float) -> None:
        self.id, self.confirmed = number, sent
        self._next_beat = sent + self.ttl / 3

    def _renewed(self, _: Any, sent: float) -> None:
        self.confirmed = sent
        self._next_beat = sent + self.ttl / 3

    def _failed(self, error: EtcdError) -> None:
        self._busy = False
        if isinstance(error, LeaseLost):
            self.id = 0
            self._take_deferred()
            self._written.clear()
            self._on_answer()
            self._turn()
            return
        self._report(error)
        self._on_answer()
        self._next_beat = 0.0
        self._timer = self._client.process.after(RETRY, self._turn)

    def _next_change(self) -> tuple[str, bytes | None] | None:
        surplus = next((key for key in self._written if key not in self._wanted), None)
        if surplus is not None:
            return surplus, None
        return next(((key, value) for key, value in self._wanted.items() if self._written.get(key) != value), None)

    def _write(self, key: str, value: bytes | None) -> None:
        etcd, number = self._client.etcd, self.id
        self._written[key] = None
        self._doubted.discard(key)

        def done(_: Any, __: float) -> None:
            if value is None:
                self._written.pop(key, None)
            elif key not in self._doubted:
                self._written[key] = value

        if value is None:
            self._call("delete", lambda: etcd.delete(key), done)
        else:
            self._call("put", lambda: etcd.put(key, value, number), done)

    def _report(self, error: EtcdError | None) -> None:
        if (error is not None) != self._failing:
            self._failing = error is not None
            self._on_state(error)


class WatchKeeper:
    """A watch for ever: listed, followed, listed again after each broken stream."""

    def __init__(
        self,
        client: Client,
        ranges: Sequence[Range],
        on_batch: Callable[[Batch], None],
        on_state: Callable[[bool, EtcdError | None], None],
        lag: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._ranges = self._wanted = tuple(ranges)
        self._on_batch, self._on_state, self._lag = on_batch, on_state, lag
        self._known: dict[str, int] = {}
        self._closed = False
        self._revision = 0
        self._reported: bool | None = None
        self._stream: Stream | None = None
        self._turn()

    def move(self, ranges: Sequence[Range]) -> None:
        self._wanted = tuple(ranges)
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self._turn()

    def close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    def _turn(self) -> None:
        if self._closed:
            return
        ranges = self._ranges = self._wanted
        etcd = self._client.etcd
        self._client.call("list", lambda: (ranges, *etcd.list_ranges(ranges)), self._list, self._failed)

    def _follow(self) -> None:
        etcd = self._client.etcd
        stream = Stream(self._client.network, PLACE, self._client.process, self._take, self._ended, self._lag)
        ranges, revision = self._ranges, self._revision

        def failed(error: EtcdError) -> None:
            stream.close()
            self._failed(error)

        def request() -> Watcher:
            return etcd.watch(ranges, [revision] * len(ranges), stream)

        self._client.call("watch", request, lambda w: self._followed(w, stream), failed)

    def _list(self, answer: tuple[tuple[Range, ...], list[KeyValue], int]) -> None:
        ranges, kvs, revision = answer
        if self._closed:
            return
        if ranges != self._wanted:
            self._turn()
            return
        listed = {kv.key: hash(kv) for kv in kvs}
        events: list[Event] = [Put(kv) for kv in kvs if self._known.get(kv.key) != listed[kv.key]]
        events += [Delete(key, revision) for key in self._known if key not in listed]
        self._known, self._revision = listed, revision
        self._report(True, None)
        self._on_batch(Batch(tuple(events), revision, snapshot=True, ranges=ranges))
        if ranges == self._wanted:
            self._follow()
        else:
            self._turn()

    def _followed(self, _: Watcher, stream: Stream) -> None:
        if self._closed or self._wanted != self._ranges:
            stream.close()
            self._turn()
            return
        self._stream = stream
        self._report(True, None)

    def _take(self, message: tuple[tuple[Event, ...], int]) -> None:
        events, revision = message
        if revision <= self._revision or self._closed:
            return
        self._revision = revision
        for event in events:
            if isinstance(event, Put):
                self._known[event.kv.key] = hash(event.kv)
            else:
                self._known.pop(event.key, None)
        self._report(True, None)
        self._on_batch(Batch(events, revision))

    def _ended(self) -> None:
        self._stream = None
        self._failed(unavailable("watch"))

    def _failed(self, error: EtcdError) -> None:
        if self._closed:
            return
        if isinstance(error, Compacted):
            self._turn()
            return
        self._report(False, error)
        self._client.process.after(RETRY, self._turn)

    def _report(self, connected: bool, error: EtcdError | None) -> None:
        if connected != self._reported:
            self._reported = connected
            self._on_state(connected, error)
