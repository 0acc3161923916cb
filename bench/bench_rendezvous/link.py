"""A few connections to etcd that thousands of members share: calls, watches and renewals over common streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_rendezvous.http2 import CallFailed, Connection
from elastrain.etcd import Batch, Delete, Event, KeyValue, Put, Range, Transaction
from elastrain.etcd.protocol import messages
from elastrain.etcd.txn import listed, listing

_KV, _LEASE = "/etcdserverpb.KV/", "/etcdserverpb.Lease/"


@dataclass(eq=False)
class Watching:
    """One member's watch of its ranges."""

    on_events: Callable[[Batch], None]
    ids: list[int] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    """Known keys and their mod_revisions."""
    ended: bool = False


class Link:
    """One connection. Use it from its event loop only."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: deque[Watching] = deque()
        self._watches: dict[int, Watching] = {}
        self.events = 0
        """Watch events that were delivered."""
        self.expired: Callable[[int], None] = lambda lease: None
        self.failed: BaseException | None = None
        """What ended one of the common streams."""
        self._watch = connection.stream("/etcdserverpb.Watch/Watch", self._heard, self._over)
        self._keep = connection.stream(_LEASE + "LeaseKeepAlive", self._renewed, self._over)

    @classmethod
    async def open(cls, endpoint: str) -> Link:
        return cls(await Connection.open(endpoint))

    def close(self) -> None:
        self._connection.close()

    def _over(self, error: CallFailed | None) -> None:
        self.failed = error or CallFailed("etcd has ended a stream")

    # ---- calls -----------------------------------------------------------------------------------------------------
    async def _call(self, path: str, request: Any, kind: Any) -> Any:
        return kind.FromString(await self._connection.unary(path, request.SerializeToString()))

    async def grant(self, ttl: int) -> int:
        request = messages.LeaseGrantRequest(TTL=ttl)
        return int((await self._call(_LEASE + "LeaseGrant", request, messages.LeaseGrantResponse)).ID)

    async def revoke(self, lease: int) -> None:
        await self._call(_LEASE + "LeaseRevoke", messages.LeaseRevokeRequest(ID=lease), messages.LeaseRevokeResponse)

    def renew(self, lease: int) -> None:
        self._connection.send(self._keep, messages.LeaseKeepAliveRequest(ID=lease).SerializeToString())

    async def put(self, key: str, value: bytes, lease: int = 0) -> None:
        await self._call(
            _KV + "Put", messages.PutRequest(key=key.encode(), value=value, lease=lease), messages.PutResponse
        )

    async def get(self, key: str) -> KeyValue | None:
        answer = await self._call(_KV + "Range", messages.RangeRequest(key=key.encode()), messages.RangeResponse)
        return KeyValue.of(answer.kvs[0]) if answer.kvs else None

    async def commit(self, transaction: Transaction) -> bool:
        return bool((await self._call(_KV + "Txn", transaction.request(), messages.TxnResponse)).succeeded)

    # ---- watches ---------------------------------------------------------------------------------------------------
    async def watch(self, ranges: Sequence[Range], watching: Watching) -> None:
        """List, report, and follow from there: the steps of :class:`elastrain.etcd.Watch`."""
        kvs, revision = listed(await self._call(_KV + "Txn", listing(ranges), messages.TxnResponse))
        events: list[Event] = [Put(kv) for kv in kvs]
        now = {kv.key: kv.mod_revision for kv in kvs}
        events += [Delete(key, revision) for key in watching.keys if key not in now]
        watching.keys = now
        watching.on_events(Batch(tuple(events), revision, snapshot=True, ranges=tuple(ranges)))
        for followed in ranges:
            if not followed.listed_only:
                self._asked.append(watching)
                self._connection.send(self._watch, followed.watch_request(revision + 1).SerializeToString())

    def unwatch(self, watching: Watching) -> None:
        """Later events are dropped here: the shared stream does not cancel single watches."""
        for number in watching.ids:
            self._watches.pop(number, None)
        watching.ids.clear()

    def _heard(self, message: bytes) -> None:
        answer = messages.WatchResponse.FromString(message)
        if answer.created:
            watching = self._asked.popleft()
            if not watching.ended:
                self._watches[answer.watch_id] = watching
                watching.ids.append(answer.watch_id)
        if answer.compact_revision:
            self.failed = RuntimeError(f"etcd has compacted revision {answer.compact_revision} under the benchmark")
        watching_ = self._watches.get(answer.watch_id)
        if watching_ is None or not answer.events:
            return
        self.events += len(answer.events)
        events = tuple(_event(e, watching_.keys) for e in answer.events)
        watching_.on_events(Batch(events, answer.header.revision))

    def _renewed(self, message: bytes) -> None:
        answer = messages.LeaseKeepAliveResponse.FromString(message)
        if answer.TTL <= 0:
            self.expired(answer.ID)


def _event(event: Any, keys: dict[str, int]) -> Event:
    if event.type == event.DELETE:
        key = event.kv.key.decode()
        keys.pop(key, None)
        return Delete(key, event.kv.mod_revision)
    kv = KeyValue.of(event.kv)
    keys[kv.key] = kv.mod_revision
    return Put(kv)
