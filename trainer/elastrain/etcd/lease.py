"""A lease and its keys, kept alive across outages by one thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from elastrain import threads
from elastrain.etcd.errors import EtcdDenied, EtcdError, LeaseLost
from elastrain.etcd.wire import Wire

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

MINIMUM_TTL = 2
"""Seconds; etcd raises shorter TTLs to about this."""
_RETRY_SECONDS = 0.3
STUCK_SECONDS = 15.0
"""Seconds of delay after which the thread's call counts as stuck beyond its deadline."""


def _nothing(*_: object) -> None:
    pass


class _Replaced(Exception):
    """Raised in a thread that returns from a call after another thread has replaced it."""


@dataclass(frozen=True, slots=True)
class LeaseCallbacks:
    """Called from the lease's thread, which waits for them: they must not block."""

    on_lost: Callable[[], None] = _nothing
    """etcd has dropped the lease with its keys."""
    on_regained: Callable[[], None] = _nothing
    """etcd has granted a new lease, and all keys are written again."""
    on_state: Callable[[EtcdError | None], None] = _nothing
    """The first failure of an outage; None once etcd answers again."""


class LeaseCalls(Protocol):
    """What a lease uses of :class:`elastrain.etcd.EtcdClient`."""

    wire: Wire
    timeout: float

    def lease_grant(self, ttl: int) -> int: ...

    def lease_keepalive(self, lease: int, *, timeout: float) -> int: ...

    def lease_revoke(self, lease: int) -> None: ...

    def put(self, key: str, value: bytes, *, lease: int = 0, timeout: float | None = None) -> int: ...

    def delete(self, key: str) -> bool: ...


class Lease:
    """One lease at a time; a lost lease is replaced and its keys are rewritten, until :meth:`close`.

    :meth:`set` and :meth:`unset` declare keys and return at once; the thread writes the changes. So an outage never
    blocks a caller, and etcd receives the last declaration.
    """

    def __init__(self, client: LeaseCalls, ttl: int, callbacks: LeaseCallbacks) -> None:
        if ttl < MINIMUM_TTL:
            raise ValueError(f"lease TTL ({ttl} s) must be at least {MINIMUM_TTL} s")
        self.ttl = ttl
        self._client = client
        self._callbacks = callbacks
        self._changed = threading.Condition()
        self._wanted: dict[str, bytes] = {}
        self._deferred: dict[str, bytes] = {}
        self._written: dict[str, bytes | None] = {}  # None: unknown, after an attempted write
        self._doubted: set[str] = set()  # reportedly deleted by another client, and not written since
        self._id = 0
        self._confirmed = time.monotonic()
        self._closing = False
        self._failing = False
        self._denial: EtcdDenied | None = None
        self._round = time.monotonic()
        """Time of the thread's last pass."""
        self._thread = self._new_thread()

    def _new_thread(self) -> threads.Thread:
        return threads.Thread(self._run, name="etcd-lease")

    @property
    def id(self) -> int:
        """Id of the present lease; 0 until a lost lease is replaced."""
        return self._id

    @property
    def confirmed(self) -> float:
        """When the newest confirmed renewal was sent, monotonic seconds. After ``ttl`` the lease may be gone, and other
        members may act on that. Read it before :attr:`id`: a lease that is replaced gets its id first."""
        return self._confirmed

    def start(self) -> None:
        """Get the lease and start to renew it. Raises ``EtcdUnavailable`` and ``EtcdDenied``."""
        self._grant()
        self._thread.start()

    def set(self, key: str, value: bytes, *, later: bool = False) -> None:
        """Declare that ``key`` holds ``value`` while the lease lives. ``later``: with the next declaration of this key,
        or when all keys are written again under a new lease."""
        with self._changed:
            if later and key in self._wanted:
                self._deferred[key] = value
                return
            self._deferred.pop(key, None)
            self._wanted[key] = value
            self._changed.notify_all()

    def unset(self, key: str) -> None:
        """Declare that ``key`` does not exist. Deletions precede other writes."""
        with self._changed:
            self._wanted.pop(key, None)
            self._deferred.pop(key, None)
            self._changed.notify_all()

    def rewrite(self, key: str) -> None:
        """Write ``key`` again without a local change, after another client deleted it."""
        with self._changed:
            self._take_deferred()
            self._written[key] = None
            self._doubted.add(key)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until etcd holds the declared keys; False after ``timeout`` seconds.

        Raises ``EtcdDenied`` if etcd refuses the write.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._denial is not None or not self._dirty(), timeout)
            if self._denial is not None:
                raise self._denial
            return not self._dirty()

    def mend(self) -> bool:
        """Replace the thread if it is stuck; returns whether it was. Call this periodically.

        gRPC bounds every call, but one call was observed to outlive its deadline: its worker lost its membership
        unnoticed. A replaced thread that returns stops without further effect.
        """
        with self._changed:
            late = time.monotonic() - self._round
            if late <= self.ttl + STUCK_SECONDS or self._closing or not self._thread.is_alive():
                return False
            self._round, self._thread = time.monotonic(), self._new_thread()
            self._thread.start()
        log.error(
            "the lease's thread is late by %.0f s: a call to etcd does not end, or this process was stopped; "
            "another thread now renews the lease",
            late,
        )
        return True

    def close(self, *, revoke: bool = True) -> None:
        """Stop the renewal. With ``revoke`` the keys vanish at once; otherwise (or without etcd) after the TTL."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=self._call_timeout + self._client.timeout)
        if revoke and self._id:
            try:
                self._client.lease_revoke(self._id)
            except LeaseLost:
                pass  # the lease has already ended
            except EtcdError as error:
                log.warning("lease not revoked; it expires within %s s: %s", self.ttl, error)

    # ---- the thread --------------------------------------------------------------------------------------------------
    @property
    def _call_timeout(self) -> float:
        return max(0.5, self.ttl / 3)

    def _run(self) -> None:
        next_beat = self._confirmed + self.ttl / 3
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._dirty(), max(0.0, next_beat - time.monotonic()))
                if self._closing or self._replaced:
                    return
                self._round = time.monotonic()
            try:
                if not self._id:
                    self._grant()
                    self._write()
                    self._callbacks.on_regained()
                elif time.monotonic() >= next_beat:
                    self._renew()
                self._write()
            except _Replaced:
                return
            except LeaseLost:
                self._forget()
                next_beat = time.monotonic()
            except EtcdError as error:
                if self._client.wire.closed:
                    return
                self._report(error)
                pause = self.ttl / 3 if isinstance(error, EtcdDenied) else _RETRY_SECONDS
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, pause)
                next_beat = time.monotonic()
            else:
                self._report(None)
                next_beat = self._confirmed + self.ttl / 3

    @property
    def _replaced(self) -> bool:
        """Whether another thread has replaced this one."""
        return threading.current_thread() is not self._thread and self._thread.is_alive()

    def _grant(self) -> None:
        sent = time.monotonic()
        self._id = self._call(self._client.lease_grant, self.ttl)
        self._confirmed = sent

    def _renew(self) -> None:
        sent = time.monotonic()
        self._call(self._client.lease_keepalive, self._id, timeout=self._call_timeout)
        self._confirmed = sent

    def _call(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """The result of ``call``; raises :class:`_Replaced` if another thread has taken over meanwhile."""
        try:
            return call(*args, **options)
        finally:
            if self._replaced:
                raise _Replaced

    def _dirty(self) -> bool:
        return self._written != self._wanted

    def _write(self) -> None:
        while True:
            with self._changed:
                change = self._next_change()
                if change is None:
                    self._changed.notify_all()
                    return
                key, value = change
                self._written[key] = None  # a failed call may have taken effect
                self._doubted.discard(key)
            if value is None:
                self._call(self._client.delete, key)
            else:
                self._call(self._client.put, key, value, lease=self._id, timeout=self._call_timeout)
            with self._changed:
                if value is None:
                    del self._written[key]
                elif key not in self._doubted:  # else the report of a deletion may have overtaken this write
                    self._written[key] = value

    def _next_change(self) -> tuple[str, bytes | None] | None:
        surplus = next((key for key in self._written if key not in self._wanted), None)
        if surplus is not None:
            return surplus, None
        return next(((key, value) for key, value in self._wanted.items() if self._written.get(key) != value), None)

    def _take_deferred(self) -> None:
        self._wanted |= self._deferred
        self._deferred.clear()

    def _forget(self) -> None:
        self._id = 0
        with self._changed:
            self._written.clear()  # the keys ended with the lease
            self._take_deferred()
        self._callbacks.on_lost()

    def _report(self, error: EtcdError | None) -> None:
        with self._changed:
            self._denial = error if isinstance(error, EtcdDenied) else None
            self._changed.notify_all()
        if (error is not None) != self._failing:
            self._failing = error is not None
            self._callbacks.on_state(error)
