"""Reads and writes of etcd keys, each with a deadline. Calls are not retried over time: the caller chooses its
patience."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from elastrain.etcd.config import EtcdConfig
from elastrain.etcd.errors import LeaseLost, TooLarge
from elastrain.etcd.kv import KeyValue
from elastrain.etcd.lease import Lease, LeaseCallbacks
from elastrain.etcd.protocol import messages
from elastrain.etcd.txn import Range, Transaction, listed, listing
from elastrain.etcd.watch import Batch, Sift, Watch, WatchState
from elastrain.etcd.wire import Wire, range_end

PAGE, LEAST_PAGE = 2000, 32
"""Keys of a page. 32 of the largest records that etcd accepts by default (1.5 MiB) are 48 MiB."""


class EtcdClient:
    """A connection to etcd, shared by threads.

    Every call can raise ``EtcdUnavailable`` (no endpoint answered within the timeout), ``EtcdDenied`` (credentials or
    permission) or ``EtcdError`` (any other error of etcd).
    """

    def __init__(self, config: EtcdConfig, *, timeout: float = 5.0) -> None:
        """``timeout``: seconds for one call, unless the call sets its own."""
        self.config = config
        self.wire = Wire(config)
        self.timeout = timeout

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, timeout: float = 5.0) -> Self:
        """See :meth:`EtcdConfig.from_environment`."""
        return cls(EtcdConfig.from_environment(environ), timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Close leases and watches first, since they otherwise end with errors."""
        self.wire.close()

    # ---- keys --------------------------------------------------------------------------------------------------------
    def get(self, key: str) -> KeyValue | None:
        """The key, or None if it does not exist (a linearizable read)."""
        answer = self._kv("Range", messages.RangeRequest(key=key.encode()), f"read {key}")
        return KeyValue.of(answer.kvs[0]) if answer.kvs else None

    def get_prefix(self, prefix: str) -> tuple[list[KeyValue], int]:
        """All keys with ``prefix``, sorted, and the revision of the read."""
        request = messages.RangeRequest(key=prefix.encode(), range_end=range_end(prefix))
        answer = self._kv("Range", request, f"list {prefix}")
        return [KeyValue.of(kv) for kv in answer.kvs], int(answer.header.revision)

    def list_pages(self, listed: Range, revision: int = 0) -> Iterator[tuple[list[KeyValue], int]]:
        """All keys of a range at one revision (0: the present one), in pages, each with that revision.

        Each page is one call. Raises ``Compacted`` if the revision is compacted meanwhile, ``TooLarge`` if a page of
        :data:`LEAST_PAGE` keys is more than this client accepts.
        """
        key, limit = listed.key.encode(), PAGE
        while True:
            request = messages.RangeRequest(key=key, range_end=listed.end.encode(), limit=limit, revision=revision)
            try:
                answer = self._kv("Range", request, f"list {listed.key}")
            except TooLarge:
                if limit <= LEAST_PAGE:
                    raise
                limit = max(limit // 4, LEAST_PAGE)
                continue
            revision = revision or int(answer.header.revision)
            more = bool(answer.more)
            if more:
                key = answer.kvs[-1].key + b"\0"
            page = [KeyValue.of(kv) for kv in answer.kvs]
            del answer  # a page may be large: at no time more of it than needed
            yield page, revision
            if not more:
                return

    def list_ranges(self, ranges: Sequence[Range]) -> tuple[list[KeyValue], int]:
        """All keys of all ranges at one revision, and that revision."""
        what = f"list {', '.join(r.key for r in ranges)}"
        return listed(self._kv("Txn", listing(ranges), what))

    def commit(self, transaction: Transaction, what: str, *, timeout: float | None = None) -> bool:
        """Execute the transaction; returns whether its conditions held. ``what`` completes "tried to ..." in errors.

        Raises ``LeaseLost`` if its lease is gone. A retry on another endpoint after a lost answer returns False.
        """
        return bool(self._kv("Txn", transaction.request(), what, timeout).succeeded)

    def put(self, key: str, value: bytes, *, lease: int = 0, timeout: float | None = None) -> int:
        """Write a key; returns the new revision. Raises ``LeaseLost`` if ``lease`` is gone."""
        request = messages.PutRequest(key=key.encode(), value=value, lease=lease)
        return int(self._kv("Put", request, f"write {key}", timeout).header.revision)

    def put_all(self, records: Mapping[str, bytes]) -> None:
        """Write several keys atomically."""
        self.commit(Transaction(unchanged=(), puts=tuple(records.items())), f"write {', '.join(records)}")

    def delete(self, key: str) -> bool:
        """Delete a key; False if it did not exist."""
        return bool(self._kv("DeleteRange", messages.DeleteRangeRequest(key=key.encode()), f"delete {key}").deleted)

    def delete_prefix_if(self, prefix: str, key: str, value: bytes) -> bool:
        """Delete all keys with ``prefix`` if ``key`` holds ``value``, in one transaction; returns whether it did."""
        held = self.get(key)
        if held is None or held.value != value:
            return False
        transaction = Transaction(((key, held.mod_revision),), puts=(), deleted=Range.prefix(prefix))
        return self.commit(transaction, f"delete {prefix}*")

    def create(self, key: str, value: bytes, *, lease: int = 0) -> tuple[bool, KeyValue]:
        """Write ``key`` if it does not exist. Returns whether it now holds this client's ``value``, and its content.

        A lost answer leads to a retry on another endpoint, so an existing equal value counts as this client's.
        """
        won, held = self._swap(key, value, expected_mod_revision=0, lease=lease, what=f"create {key}")
        if held is None:  # impossible: the same transaction read the key
            raise AssertionError(f"transaction on {key} returned nothing")
        return won, held

    def compare_and_swap(
        self, key: str, value: bytes, *, expected_mod_revision: int, lease: int = 0
    ) -> tuple[bool, KeyValue | None]:
        """Write ``key`` if it has the expected mod_revision (0: it does not exist).

        Returns whether it now holds ``value``, and its content (None: it does not exist).
        """
        return self._swap(
            key, value, expected_mod_revision=expected_mod_revision, lease=lease, what=f"compare and swap {key}"
        )

    def _swap(
        self, key: str, value: bytes, *, expected_mod_revision: int, lease: int, what: str
    ) -> tuple[bool, KeyValue | None]:
        raw = key.encode()
        compare = messages.Compare(
            key=raw,
            target=messages.Compare.MOD,
            result=messages.Compare.EQUAL,
            mod_revision=expected_mod_revision,
        )
        put = messages.RequestOp(request_put=messages.PutRequest(key=raw, value=value, lease=lease))
        read = messages.RequestOp(request_range=messages.RangeRequest(key=raw))
        answer = self._kv("Txn", messages.TxnRequest(compare=[compare], success=[put, read], failure=[read]), what)
        kvs = answer.responses[-1].response_range.kvs
        held = KeyValue.of(kvs[0]) if kvs else None
        return bool(answer.succeeded) or (held is not None and held.value == value), held

    def _kv(self, method: str, request: Any, what: str, timeout: float | None = None) -> Any:
        return self.wire.unary("kv", method, request, timeout=timeout or self.timeout, what=what)

    # ---- leases and watches ------------------------------------------------------------------------------------------
    def lease(self, ttl: int, callbacks: LeaseCallbacks | None = None) -> Lease:
        """A lease of ``ttl`` seconds (at least 2) that a thread keeps alive; see :class:`Lease`.

        Blocks until etcd grants it.
        """
        lease = Lease(self, ttl, callbacks or LeaseCallbacks())
        lease.start()
        return lease

    def lease_grant(self, ttl: int) -> int:
        """Id of a new lease without a keepalive."""
        request = messages.LeaseGrantRequest(TTL=ttl)
        what = f"get a lease of {ttl} s"
        return int(self.wire.unary("lease", "LeaseGrant", request, timeout=self.timeout, what=what).ID)

    def lease_revoke(self, lease: int) -> None:
        """End a lease; etcd deletes its keys. Raises ``LeaseLost`` if there is no such lease."""
        request = messages.LeaseRevokeRequest(ID=lease)
        self.wire.unary("lease", "LeaseRevoke", request, timeout=self.timeout, what="end a lease")

    def end_lease(self, lease: int) -> None:
        """End a lease, with all its keys, if it has not ended yet. Only with proof that the process that holds it has
        ended: the job then goes on without that member. Raises ``EtcdError``."""
        with suppress(LeaseLost):
            self.lease_revoke(lease)

    def lease_keepalive(self, lease: int, *, timeout: float) -> int:
        """Renew a lease once; returns the seconds left. Raises ``LeaseLost`` if it has expired."""
        request = messages.LeaseKeepAliveRequest(ID=lease)
        answer = self.wire.renew(request, timeout=timeout, what="renew a lease")
        if answer.TTL <= 0:
            raise LeaseLost("renew a lease", f"lease {lease:x} has expired")
        return int(answer.TTL)

    def watch_prefix(
        self,
        prefix: str,
        on_events: Callable[[Batch], None],
        on_state: Callable[[WatchState], None] | None = None,
        sift: Sift | None = None,
    ) -> Watch:
        """Report all keys under ``prefix`` and every later change, without end; see :class:`Watch`. Does not block."""
        return self.watch((Range.prefix(prefix),), on_events, on_state, sift)

    def watch(
        self,
        ranges: Sequence[Range],
        on_events: Callable[[Batch], None],
        on_state: Callable[[WatchState], None] | None = None,
        sift: Sift | None = None,
    ) -> Watch:
        """The same for all keys of ``ranges``, over one stream."""
        watch = Watch(self, ranges, on_events, on_state or _ignore, sift=sift)
        watch.start()
        return watch


def _ignore(_: WatchState) -> None:
    pass
