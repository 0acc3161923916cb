"""etcd: revisions, transactions, leases, watches from a revision; restart, compaction and loss of all data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastrain.etcd import Delete, Event, KeyValue, Put, Range, Transaction
from elastrain.etcd.errors import Compacted, LeaseLost
from sim.clock import Clock, Timer
from sim.network import Refused, Stream

PLACE = "etcd"


@dataclass
class _Lease:
    ttl: float
    keys: set[str] = field(default_factory=set)
    timer: Timer | None = None
    deadline: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """What `etcdctl snapshot restore` brings back: the data of a moment, and the leases with their full time."""

    revision: int
    kvs: dict[str, KeyValue]
    ttls: dict[int, float]


@dataclass
class Watcher:
    """One watch of several ranges, of which each is sent what is newer than its revision."""

    ranges: tuple[Range, ...]
    stream: Stream


class Etcd:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.up = True
        self.revision = 10**6
        self.lost = False
        """Whether it has lost its data, which happens once: clients know it by a revision that has gone back."""
        self.restored: float | None = None
        """When it came back with old data."""
        self.kvs: dict[str, KeyValue] = {}
        self.leases: dict[int, _Lease] = {}
        self.on_change: Callable[[tuple[Event, ...]], None] = lambda _: None
        """Told of every transaction, for the invariants."""
        self._history: list[tuple[int, tuple[Event, ...]]] = []
        self._compacted = 0
        self._watchers: list[Watcher] = []
        self._next_lease = 1

    # ---- requests ----------------------------------------------------------------------------------------------------
    def get(self, key: str) -> KeyValue | None:
        self._answer()
        return self.kvs.get(key)

    def list_ranges(self, ranges: Sequence[Range]) -> tuple[list[KeyValue], int]:
        self._answer()
        found = {key: self.kvs[key] for r in ranges for key in sorted(self.kvs) if covers(r, key)}
        return list(found.values()), self.revision

    def put(self, key: str, value: bytes, lease: int = 0) -> int:
        self.commit(Transaction((), ((key, value),), lease=lease))
        return self.revision

    def delete(self, key: str) -> None:
        self._answer()
        if key in self.kvs:
            self._apply([self._deletion(key)])

    def commit(self, transaction: Transaction) -> bool:
        self._answer()
        if transaction.lease and transaction.lease not in self.leases:
            raise LeaseLost("write", "requested lease not found")
        for key, expected in transaction.unchanged:
            held = self.kvs.get(key)
            if (held.mod_revision if held else 0) != expected:
                return False
        if any(self.kvs.get(key) is None or self.kvs[key].value != value for key, value in transaction.holding):
            return False
        gone = [key for key in sorted(self.kvs) if transaction.deleted and covers(transaction.deleted, key)]
        events: list[Event] = [self._deletion(key) for key in gone]
        for key, value in transaction.puts:
            before = self.kvs.get(key)
            created = before.create_revision if before else self.revision + 1
            events.append(Put(KeyValue(key, value, created, self.revision + 1, transaction.lease)))
        self._apply(events)
        return True

    def grant(self, ttl: float) -> int:
        self._answer()
        number, self._next_lease = self._next_lease, self._next_lease + 1
        self.leases[number] = _Lease(ttl)
        self._extend(number)
        return number

    def keepalive(self, number: int) -> None:
        self._answer()
        if number not in self.leases:
            raise LeaseLost("renew", "requested lease not found")
        self._extend(number)

    def revoke(self, number: int) -> None:
        self._answer()
        self._end(number)

    def watch(self, ranges: tuple[Range, ...], revisions: Sequence[int], stream: Stream) -> Watcher:
        """Send ``stream`` what came after ``revisions`` (one for each range), and all that comes."""
        self._answer()
        if max(revisions) > self.revision:
            raise Compacted("watch", "etcd has lost its data: its revision decreased")
        if min(revisions) < self._compacted:
            raise Compacted("watch", f"compacted at {self._compacted}")
        watcher = Watcher(ranges, stream)
        for revision, events in self._history:
            wanted = [r for r, seen in zip(ranges, revisions, strict=True) if revision > seen]
            newer = tuple(e for e in events if any(reports(r, e) for r in wanted))
            if newer:
                stream.send((newer, revision))
        self._watchers.append(watcher)
        return watcher

    # ---- faults ------------------------------------------------------------------------------------------------------
    def snapshot(self) -> Snapshot:
        """Its data now."""
        ttls = {number: lease.ttl for number, lease in self.leases.items()}
        return Snapshot(self.revision, dict(self.kvs), ttls)

    def crash(self, *, lose: bool = False, restore: Snapshot | None = None) -> None:
        """``restore``: it comes back with this old data."""
        self.up = False
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.stream.end()
        for lease in self.leases.values():
            if lease.timer:
                lease.timer.cancel()
        if lose:
            self.lost = True
            self.kvs, self.leases, self._history = {}, {}, []
            self.revision, self._compacted = 1, 0
        if restore is not None:
            self.lost, self.restored = True, self.clock.now
            self.kvs, self._history = dict(restore.kvs), []
            self.revision = self._compacted = restore.revision
            self.leases = {number: _Lease(ttl) for number, ttl in restore.ttls.items()}
            for key, kv in self.kvs.items():
                if kv.lease in self.leases:
                    self.leases[kv.lease].keys.add(key)

    def start(self) -> None:
        """Again: leases get their full time anew, as after an election of etcd's own."""
        self.up = True
        for number in list(self.leases):
            self._extend(number)

    def compact(self) -> None:
        self._compacted, self._history = self.revision, []

    def lose_lease(self, number: int) -> None:
        """As if its owner had been silent for its time."""
        self._end(number)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _answer(self) -> None:
        if not self.up:
            raise Refused("connection refused")

    def _deletion(self, key: str) -> Delete:
        return Delete(key, self.revision + 1)

    def _apply(self, events: list[Event]) -> None:
        self.revision += 1
        for event in events:
            key = event.kv.key if isinstance(event, Put) else event.key
            before = self.kvs.pop(key, None)
            if before is not None and before.lease in self.leases:
                self.leases[before.lease].keys.discard(key)
            if isinstance(event, Put):
                self.kvs[key] = event.kv
                if event.kv.lease in self.leases:
                    self.leases[event.kv.lease].keys.add(key)
        done = tuple(events)
        self._history.append((self.revision, done))
        self.on_change(done)
        for watcher in self._watchers:
            seen = tuple(e for e in done if any(reports(r, e) for r in watcher.ranges))
            if seen:
                watcher.stream.send((seen, self.revision))
        self._watchers = [w for w in self._watchers if w.stream.open]

    def _extend(self, number: int) -> None:
        lease = self.leases[number]
        lease.deadline = self.clock.now + lease.ttl
        if lease.timer is None or lease.timer.call is None:
            lease.timer = self.clock.at(lease.deadline, self._expire, number)

    def _expire(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is None:
            return
        lease.timer = None
        if not self.up:
            return
        if self.clock.now < lease.deadline:
            lease.timer = self.clock.at(lease.deadline, self._expire, number)
        else:
            self._end(number)

    def _end(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is None:
            return
        keys = sorted(lease.keys)
        if keys:
            self._apply([self._deletion(key) for key in keys])
        self.leases.pop(number)


def covers(r: Range, key: str) -> bool:
    return r.key <= key < r.end if r.end else key == r.key


def reports(r: Range, event: Event) -> bool:
    """Whether a watch of ``r`` tells of ``event``."""
    if r.listed_only or (r.deletes_only and isinstance(event, Put)):
        return False
    return covers(r, event.kv.key if isinstance(event, Put) else event.key)
