"""A member of a job: one object per agent.

It holds the lease and the member's record; its :class:`~elastrain.rendezvous.driver.Driver` executes the member's part
of the protocol. The owner changes the member's record by :meth:`Membership.update` and reads :attr:`Membership.view`,
which ``on_change`` announces.

    changed = threading.Event()
    member = Membership(client, keys, worker="digits-0", address="10.0.0.7", slots=1, on_change=changed.set)
    member.start()                                    # registered with phase `warming`
    member.update(phase=Phase.READY, store_port=29500)
    changed.wait(60)
    member.update(generation=member.view.generation.number)

Cost: a member writes its key once per change of its state; the leader adds one transaction per generation, and every
member receives the generation once. Only the leader watches the other members' records. While etcd is unreachable no
member acts, and :meth:`update` still returns at once: the newest record is written when etcd returns.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Closed, Member, Phase, Progress
from elastrain.etcd import EtcdClient, EtcdError, EtcdUnavailable, Lease, LeaseCallbacks
from elastrain.rendezvous.decide import Action, Timing
from elastrain.rendezvous.driver import Clock, Driver
from elastrain.rendezvous.progress import ProgressPost
from elastrain.rendezvous.view import View

log = logging.getLogger(__name__)


class Membership:
    """This process as a member of a job. All methods are thread-safe and, unless noted, do not block."""

    def __init__(
        self,
        client: EtcdClient,
        keys: JobKeys,
        *,
        worker: str,
        address: str,
        on_change: Callable[[], None] | None = None,
        slots: int = 1,
        group: int = 0,
        place: int = 0,
        group_size: int = 1,
        one_copy: bool = False,
        node: str = "",
        pod: str = "",
        lease_ttl: int = names.DEFAULT_LEASE_TTL,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        clock: Clock = time.monotonic,
        sees_all: bool = False,
    ) -> None:
        """``on_change`` is called after each new :attr:`view` and each change of :attr:`reachable`,
        from a thread of the membership; it must not block.

        ``sees_all``: :attr:`view` contains all members even if another one leads, at the cost of one event per change
        of any member.
        """
        self.keys = keys
        self.lease_ttl = lease_ttl
        self._client = client
        self._record = Member(
            id=_new_id(worker), worker=worker, node=node, pod=pod, address=address, slots=slots,
            group=group, place=place, group_size=group_size, one_copy=one_copy,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._stopped = False
        self._progress = ProgressPost(client, keys)
        self._driver = Driver(
            client, keys, lambda: self._record, self._progress, on_change or _ignore,
            lease_ttl=lease_ttl, timing=timing, clock=clock, sees_all=sees_all,
        )  # fmt: skip

    # ---- for the owner ---------------------------------------------------------------------------------------------
    @property
    def id(self) -> str:
        """The member id of this incarnation."""
        return self._record.id

    @property
    def record(self) -> Member:
        """This member's record as last updated (etcd may not have it yet)."""
        return self._record

    @property
    def view(self) -> View:
        """The newest snapshot of the job."""
        return self._driver.view

    @property
    def action(self) -> Action | None:
        """The last decision and its reason, for logs and error messages."""
        return todo.action if (todo := self._driver.protocol.todo) else None

    @property
    def reachable(self) -> bool:
        """Whether etcd answers; if not, :attr:`view` is outdated."""
        return self._driver.protocol.contact.reachable

    @property
    def outage(self) -> EtcdError | None:
        """Why etcd does not answer; None: it answers, or the reason is not known yet."""
        return self._driver.protocol.contact.error

    def wait_for(self, condition: Callable[[View], bool], timeout: float) -> bool:
        """Block until a view meets ``condition``; False if none did within ``timeout`` seconds."""
        return self._driver.wait_for(condition, timeout)

    def start(self, timeout: float = 10.0) -> None:
        """Register, and read the state of the job. Blocks.

        Raises ``EtcdUnavailable`` or ``EtcdDenied`` if that fails, or takes longer than ``timeout`` seconds.
        """
        callbacks = LeaseCallbacks(on_regained=self._on_regained, on_state=self._driver.lease_state)
        self._lease = self._client.lease(self.lease_ttl, callbacks)
        try:
            self._lease.set(self.keys.member(self.id), self._record.encode())
            if not self._lease.flush(timeout):
                raise EtcdUnavailable(self._client.wire.endpoint, "register", f"not done within {timeout:g} s")
            self._driver.start(self._lease, timeout)
        except EtcdError:
            self._lease.close()
            self._driver.close()
            raise

    def update(self, *, later: bool = False, **changes: Any) -> Member:
        """Change fields of this member's record (``phase``, ``store_port``, ``generation``, ``step``, ``broken``, ...).
        ``later``: etcd gets them with the next change, or if it has lost the record.

        Returns the record. Raises ``pydantic.ValidationError`` for an invalid value, and ``ValueError`` for ``id``: see
        :meth:`reincarnate`.
        """
        if "id" in changes:
            raise ValueError("a member's id changes by reincarnate() only")
        with self._lock:
            self._record = Member.model_validate({**self._record.model_dump(), **changes})
            self._write(later=later)
            return self._record

    def reincarnate(self, **changes: Any) -> Member:
        """After a restart of the ranks: leave under the old id and register under a new one, warming, in no
        generation."""
        with self._lock:
            old = self._record
            fresh = {
                **old.model_dump(),
                "id": _new_id(old.worker),
                "phase": Phase.WARMING,
                "store_port": 0,
                "generation": 0,
                "broken": 0,
                "fault": 0,
                "faults": 0,
                "unsent": 0,
                "learning": False,
                "holds": False,
                "restarts": old.restarts + 1,
            }
            self._record = Member.model_validate({**fresh, **changes})
            if self._lease is not None:
                self._lease.unset(self.keys.member(old.id))
            self._write()
            return self._record

    def publish(self, progress: Progress) -> None:
        """Write ``progress``, at most once a second; the newest replaces the others."""
        self._progress.put(self.id, progress)
        self._driver.wake()

    def close_job(self, reason: str, message: str, timeout: float) -> None:
        """Record that no further generation is formed. Raises ``EtcdError``."""
        self._progress.close_job(Closed(member=self.id, reason=reason, message=message), timeout)

    def flush(self, timeout: float) -> bool:
        """Wait until etcd has this member's record and the progress; False after ``timeout`` seconds.

        Raises ``EtcdDenied`` if etcd refuses the write.
        """
        deadline = time.monotonic() + timeout
        if self._lease is not None and not self._lease.flush(timeout):
            return False
        try:
            self._progress.write_now(max(0.1, deadline - time.monotonic()))
        except EtcdUnavailable:
            return False
        return True

    @property
    def lease(self) -> tuple[float, int]:
        """When the lease was last confirmed (monotonic seconds), and its id; 0: it is lost and not replaced yet."""
        lease = self._lease
        return (lease.confirmed, lease.id) if lease is not None else (float("-inf"), 0)

    def leave(self) -> None:
        """Delete this member's key at once and stop. Blocks for a few seconds at most; a second call does nothing."""
        self._close(revoke=True)

    def close(self) -> None:
        """Stop without deleting the key: for other members this one is dead when its lease has expired."""
        self._close(revoke=False)

    def _close(self, *, revoke: bool) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._driver.stop()
        if self._lease is not None:
            self._lease.close(revoke=revoke)
        self._driver.close()

    def _write(self, *, later: bool = False) -> None:
        if self._lease is not None and not self._stopped:
            self._lease.set(self.keys.member(self._record.id), self._record.encode(), later=later)
            self._driver.wake()

    def _on_regained(self) -> None:
        log.warning("the lease of %s had expired; registered again under the same id", self.id)


def _new_id(worker: str) -> str:
    return f"{worker}.{uuid.uuid4().hex[:8]}"


def _ignore() -> None:
    """The callback of a membership whose owner polls."""
