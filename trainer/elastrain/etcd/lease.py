"""A lease and the keys that live by it, kept alive across outages by one thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from elastrain.etcd.errors import EtcdDenied, EtcdError, LeaseLost

if TYPE_CHECKING:
    from elastrain.etcd.client import EtcdClient

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

MINIMUM_TTL = 2
"""Seconds; etcd itself raises shorter ones to about this."""
_RETRY_SECONDS = 0.3
STUCK_SECONDS = 15.0
"""A thread that is late by so much waits in a call that its deadline has not ended, and never will."""


def _nothing(*_: object) -> None:
    pass


class _Replaced(Exception):
    """Raised in a thread that comes back from a call and finds that another one goes on in its place."""


@dataclass(frozen=True, slots=True)
class LeaseCallbacks:
    """Called from the lease's thread, which waits for them: they must not block."""

    on_lost: Callable[[], None] = _nothing
    """etcd has dropped the lease, and its keys with it."""
    on_regained: Callable[[], None] = _nothing
    """A new lease is granted and all keys are written again."""
    on_state: Callable[[EtcdError | None], None] = _nothing
    """The first failure of an outage, and None when etcd answers again."""


class Lease:
    """One lease at a time; a lost one is replaced and its keys are written again, for as long as this is open.

    Keys are declared by :meth:`set` and :meth:`unset`, which return at once; the thread writes what has changed. So an
    outage never blocks a caller, and what was declared last is what etcd gets.
    """

    def __init__(self, client: EtcdClient, ttl: int, callbacks: LeaseCallbacks) -> None:
        if ttl < MINIMUM_TTL:
            raise ValueError(f"lease TTL ({ttl} s) must be at least {MINIMUM_TTL} s")
        self.ttl = ttl
        self._client = client
        self._callbacks = callbacks
        self._changed = threading.Condition()
        self._wanted: dict[str, bytes] = {}
        self._written: dict[str, bytes | None] = {}  # None: unknown, a write was tried
        self._doubted: set[str] = set()  # said to be deleted by somebody else, and not written since
        self._id = 0
        self._confirmed = time.monotonic()
        self._closing = False
        self._failing = False
        self._denial: EtcdDenied | None = None
        self._round = time.monotonic()
        """When the thread last came round."""
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="etcd-lease", daemon=True)

    @property
    def id(self) -> int:
        """Id of the lease now held; 0 while a lost one has not been replaced."""
        return self._id

    def start(self) -> None:
        """Get the lease (raises ``EtcdUnavailable``, ``EtcdDenied``) and begin to keep it."""
        self._grant()
        self._thread.start()

    def set(self, key: str, value: bytes) -> None:
        """``key`` shall hold ``value`` for as long as the lease lives."""
        with self._changed:
            self._wanted[key] = value
            self._changed.notify_all()

    def unset(self, key: str) -> None:
        """``key`` shall not exist. Deletions are written before other changes."""
        with self._changed:
            self._wanted.pop(key, None)
            self._changed.notify_all()

    def rewrite(self, key: str) -> None:
        """Write ``key`` again although nothing changed here: somebody else has deleted it."""
        with self._changed:
            self._written[key] = None
            self._doubted.add(key)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until etcd holds what was declared; False if that took longer than ``timeout`` seconds.

        Raises ``EtcdDenied`` if etcd refuses the write.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._denial is not None or not self._dirty(), timeout)
            if self._denial is not None:
                raise self._denial
            return not self._dirty()

    def seconds_since_confirmed(self) -> float:
        """Age of the newest renewal that etcd confirmed, counted from when it was sent: at ``ttl`` the lease may be
        gone, and others may act on that."""
        return time.monotonic() - self._confirmed

    def mend(self) -> bool:
        """Have another thread go on if this one is stuck; whether it was. To be called now and then.

        gRPC bounds every call, but one was seen to outlive its deadline, and with it a worker that was no member any
        more without knowing. What a stuck thread may still do if it ever comes back, it does no more.
        """
        with self._changed:
            late = time.monotonic() - self._round
            if late <= self.ttl + STUCK_SECONDS or self._closing or not self._thread.is_alive():
                return False
            self._round, self._thread = time.monotonic(), self._new_thread()
            self._thread.start()
        log.error(
            "the lease's thread is late by %.0f s: a call to etcd does not end, or this process was stopped; "
            "another thread renews the lease",
            late,
        )
        return True

    def close(self, *, revoke: bool = True) -> None:
        """Stop keeping it. With ``revoke`` its keys vanish at once, otherwise (or if etcd is away) after the TTL."""
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
                pass  # what revoking is for has happened
            except EtcdError as error:
                log.warning("lease not revoked, it ends by itself within %s s: %s", self.ttl, error)

    # ---- the thread ------------------------------------------------------------------------------------------------
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
        """Whether this is a thread whose place another one has taken."""
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
        """What ``call`` returns or raises; :class:`_Replaced` instead if another thread has gone on meanwhile."""
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
                self._written[key] = None  # if the call fails, it may have taken effect all the same
                self._doubted.discard(key)
            if value is None:
                self._call(self._client.delete, key)
            else:
                self._call(self._client.put, key, value, lease=self._id, timeout=self._call_timeout)
            with self._changed:
                if value is None:
                    del self._written[key]
                elif key not in self._doubted:  # else the deletion may have come after this write, and been heard first
                    self._written[key] = value

    def _next_change(self) -> tuple[str, bytes | None] | None:
        surplus = next((key for key in self._written if key not in self._wanted), None)
        if surplus is not None:
            return surplus, None
        return next(((key, value) for key, value in self._wanted.items() if self._written.get(key) != value), None)

    def _forget(self) -> None:
        self._id = 0
        with self._changed:
            self._written.clear()  # what lived by the lease died with it
        self._callbacks.on_lost()

    def _report(self, error: EtcdError | None) -> None:
        with self._changed:
            self._denial = error if isinstance(error, EtcdDenied) else None
            self._changed.notify_all()
        if (error is not None) != self._failing:
            self._failing = error is not None
            self._callbacks.on_state(error)
