"""A few connections to etcd that thousands of members share: calls, watches and renewals over common streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import etcd3.etcdrpc as rpc
import grpc

from elastrain.etcd import Batch, Delete, Event, KeyValue, Put, Range, Transaction
from elastrain.etcd.txn import listed, listing

_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]


@dataclass(eq=False)
class Watching:
    """One member's watch of its ranges."""

    on_events: Callable[[Batch], None]
    ids: list[int] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    """Known keys and their mod_revisions."""
    ended: bool = False


class Link:
    """One connection. Use it from one event loop."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        self._kv, self._lease = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._watch, self._keep = rpc.WatchStub(self._channel).Watch(), self._lease.LeaseKeepAlive()
        self._asked: deque[Watching] = deque()
        self._watches: dict[int, Watching] = {}
        self._writes: asyncio.Queue[Any] = asyncio.Queue()
        self.events = 0
        """Watch events that were delivered."""
        self.expired: Callable[[int], None] = lambda lease: None
        self._tasks = [asyncio.create_task(t) for t in (self._send(), self._hear(), self._renewed())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def failed(self) -> BaseException | None:
        """What ended one of the common streams."""
        return next((t.exception() for t in self._tasks if t.done() and not t.cancelled()), None)

    # ---- calls -----------------------------------------------------------------------------------------------------
    async def grant(self, ttl: int) -> int:
        return int((await self._lease.LeaseGrant(rpc.LeaseGrantRequest(TTL=ttl))).ID)

    async def revoke(self, lease: int) -> None:
        await self._lease.LeaseRevoke(rpc.LeaseRevokeRequest(ID=lease))

    async def renew(self, lease: int) -> None:
        await self._keep.write(rpc.LeaseKeepAliveRequest(ID=lease))

    async def put(self, key: str, value: bytes, lease: int = 0) -> None:
        await self._kv.Put(rpc.PutRequest(key=key.encode(), value=value, lease=lease))

    async def get(self, key: str) -> KeyValue | None:
        answer = await self._kv.Range(rpc.RangeRequest(key=key.encode()))
        return KeyValue.of(answer.kvs[0]) if answer.kvs else None

    async def commit(self, transaction: Transaction) -> bool:
        return bool((await self._kv.Txn(transaction.request())).succeeded)

    # ---- watches ---------------------------------------------------------------------------------------------------
    async def watch(self, ranges: Sequence[Range], watching: Watching) -> None:
        """List, report, and follow from there: the steps of :class:`elastrain.etcd.Watch`."""
        kvs, revision = listed(await self._kv.Txn(listing(ranges)))
        events: list[Event] = [Put(kv) for kv in kvs]
        now = {kv.key: kv.mod_revision for kv in kvs}
        events += [Delete(key, revision) for key in watching.keys if key not in now]
        watching.keys = now
        watching.on_events(Batch(tuple(events), revision, snapshot=True, ranges=tuple(ranges)))
        for followed in ranges:
            if not followed.listed_only:
                self._writes.put_nowait((watching, followed.watch_request(revision + 1)))

    def unwatch(self, watching: Watching) -> None:
        for number in watching.ids:
            self._watches.pop(number, None)
            cancel = rpc.WatchRequest(cancel_request=rpc.WatchCancelRequest(watch_id=number))
            self._writes.put_nowait((None, cancel))
        watching.ids.clear()

    async def _send(self) -> None:
        while True:
            watching, request = await self._writes.get()
            if watching is not None:
                self._asked.append(watching)
            await self._watch.write(request)

    async def _hear(self) -> None:
        async for answer in self._watch:
            if answer.created:
                watching = self._asked.popleft()
                self._watches[answer.watch_id] = watching
                watching.ids.append(answer.watch_id)
                if watching.ended:
                    self.unwatch(watching)
            if answer.compact_revision:
                raise RuntimeError(f"etcd has compacted revision {answer.compact_revision} under the benchmark")
            watching = self._watches.get(answer.watch_id)
            if watching is None or not answer.events:
                continue
            self.events += len(answer.events)
            events = tuple(_event(e, watching.keys) for e in answer.events)
            watching.on_events(Batch(events, answer.header.revision))

    async def _renewed(self) -> None:
        async for answer in self._keep:
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
