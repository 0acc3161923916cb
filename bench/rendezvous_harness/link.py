"""A few connections to etcd that thousands of members share: calls, watches and renewals over common streams."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import etcd3.etcdrpc as rpc
import grpc

from elastrain.etcd import Batch, Delete, Event, KeyValue, Put, Range, Transaction
from elastrain.etcd.txn import listed, listing

_OPTIONS = [("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1)]
_SECONDS = 60.0


@dataclass(eq=False)
class Watching:
    """One member's watch of its ranges."""

    on_events: Callable[[Batch], None]
    ids: list[int] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    """Known keys and their mod_revisions."""
    ended: bool = False


class Link:
    """One connection. Use it from one event loop; gRPC's own threads do the waiting."""

    def __init__(self, endpoint: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        self._kv, self._lease = rpc.KVStub(self._channel), rpc.LeaseStub(self._channel)
        self._to_watch: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._to_keep: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked: deque[Watching] = deque()
        self._watches: dict[int, Watching] = {}
        self.events = 0
        """Watch events that were delivered."""
        self.expired: Callable[[int], None] = lambda lease: None
        self.failed: BaseException | None = None
        """What ended one of the common streams."""
        self._closed = False
        watch = rpc.WatchStub(self._channel).Watch(iter(self._to_watch.get, None))
        keep = self._lease.LeaseKeepAlive(iter(self._to_keep.get, None))
        for stream, hear in ((watch, self._heard), (keep, self._renewed)):
            threading.Thread(target=self._follow, args=(stream, hear), daemon=True).start()

    async def close(self) -> None:
        self._closed = True
        self._to_watch.put(None)
        self._to_keep.put(None)
        await asyncio.to_thread(self._channel.close)

    # ---- calls -----------------------------------------------------------------------------------------------------
    async def _call(self, method: Any, request: Any) -> Any:
        answer = self._loop.create_future()
        call = method.future(request, timeout=_SECONDS)
        call.add_done_callback(lambda done: self._tell(answer, done))
        return await answer

    def _tell(self, answer: asyncio.Future[Any], call: Any) -> None:
        """From gRPC's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            self._loop.call_soon_threadsafe(_resolve, answer, call)

    async def grant(self, ttl: int) -> int:
        return int((await self._call(self._lease.LeaseGrant, rpc.LeaseGrantRequest(TTL=ttl))).ID)

    async def revoke(self, lease: int) -> None:
        await self._call(self._lease.LeaseRevoke, rpc.LeaseRevokeRequest(ID=lease))

    def renew(self, lease: int) -> None:
        self._to_keep.put(rpc.LeaseKeepAliveRequest(ID=lease))

    async def put(self, key: str, value: bytes, lease: int = 0) -> None:
        await self._call(self._kv.Put, rpc.PutRequest(key=key.encode(), value=value, lease=lease))

    async def get(self, key: str) -> KeyValue | None:
        answer = await self._call(self._kv.Range, rpc.RangeRequest(key=key.encode()))
        return KeyValue.of(answer.kvs[0]) if answer.kvs else None

    async def commit(self, transaction: Transaction) -> bool:
        return bool((await self._call(self._kv.Txn, transaction.request())).succeeded)

    # ---- watches ---------------------------------------------------------------------------------------------------
    async def watch(self, ranges: Sequence[Range], watching: Watching) -> None:
        """List, report, and follow from there: the steps of :class:`elastrain.etcd.Watch`."""
        kvs, revision = listed(await self._call(self._kv.Txn, listing(ranges)))
        events: list[Event] = [Put(kv) for kv in kvs]
        now = {kv.key: kv.mod_revision for kv in kvs}
        events += [Delete(key, revision) for key in watching.keys if key not in now]
        watching.keys = now
        watching.on_events(Batch(tuple(events), revision, snapshot=True, ranges=tuple(ranges)))
        for followed in ranges:
            if not followed.listed_only:
                self._asked.append(watching)
                self._to_watch.put(followed.watch_request(revision + 1))

    def unwatch(self, watching: Watching) -> None:
        """What etcd still sends is dropped: a stream that so many share is never told to cancel a part of itself."""
        for number in watching.ids:
            self._watches.pop(number, None)
        watching.ids.clear()

    def _follow(self, stream: Any, hear: Callable[[Any], None]) -> None:
        try:
            for answer in stream:
                self._loop.call_soon_threadsafe(hear, answer)
            raise RuntimeError("etcd has ended a stream")
        except Exception as error:  # told to the event loop, which raises it
            if not self._closed:
                self.failed = error

    def _heard(self, answer: Any) -> None:
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

    def _renewed(self, answer: Any) -> None:
        if answer.TTL <= 0:
            self.expired(answer.ID)


def _resolve(answer: asyncio.Future[Any], call: Any) -> None:
    if answer.done():
        return
    error = call.exception()
    if error is None:
        answer.set_result(call.result())
    else:
        answer.set_exception(error)


def _event(event: Any, keys: dict[str, int]) -> Event:
    if event.type == event.DELETE:
        key = event.kv.key.decode()
        keys.pop(key, None)
        return Delete(key, event.kv.mod_revision)
    kv = KeyValue.of(event.kv)
    keys[kv.key] = kv.mod_revision
    return Put(kv)
