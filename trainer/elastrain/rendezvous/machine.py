"""One member between two answers of etcd: its view, its next transaction, and its next deadline.

No threads, sockets or clock: :class:`~elastrain.rendezvous.driver.Driver` feeds it and executes the result, as does the
simulation (``tests/sim``). Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from elastrain.api.keys import JobKeys
from elastrain.api.records import Member
from elastrain.etcd import Batch, Delete, Range
from elastrain.rendezvous.contact import Contact
from elastrain.rendezvous.decide import Timing
from elastrain.rendezvous.protocol import LONGEST_REST, MemberProtocol, Todo
from elastrain.rendezvous.view import View

RETRY_SECONDS = 0.5
"""Seconds without a write after a failed call to etcd."""


class MemberMachine:
    """One member's state machine, for one thread. ``own`` is always the member's record as it should be in etcd."""

    def __init__(
        self,
        keys: JobKeys,
        own: Member,
        *,
        lease_ttl: int,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        sees_all: bool = False,
    ) -> None:
        self.protocol = MemberProtocol(keys, timing, sees_all=sees_all)
        self.contact = Contact(lease_ttl)
        self.view = View(self_id=own.id, complete=False)
        self.todo: Todo | None = None
        self.scope: tuple[Range, ...] = self.protocol.scope(own)
        """The ranges to watch now."""
        self._keys = keys
        self._lease_ttl = lease_ttl
        self._retry_at = 0.0
        self._look_at: float | None = None

    # ---- what comes from etcd --------------------------------------------------------------------------------------
    def take(self, batch: Batch, own: Member, now: float) -> bool:
        """Apply changes from the watch. Returns whether the own record must be written again: it is gone although the
        member lives (its lease expired unnoticed, or another client deleted the key), or a list shows a former one (of
        a restored snapshot)."""
        self.protocol.take(batch, outage=self.contact.outage(now))
        key, views = self._keys.member(own.id), self.protocol.views
        # The key may also have vanished before this watch started: then only a list of all members shows it.
        listed = views.state.members.get(own.id)
        absent = batch.snapshot and views.complete and listed is None
        former = batch.snapshot and listed is not None and listed.record != own
        return absent or former or any(isinstance(e, Delete) and e.key == key for e in batch.events)

    def put_off(self, now: float) -> None:
        """A call to etcd has failed: write nothing for :data:`RETRY_SECONDS`."""
        self._retry_at = now + RETRY_SECONDS

    # ---- a look, and what follows ----------------------------------------------------------------------------------
    def may_wait(self, now: float) -> bool:
        """Whether the last changes are too few for a decision and may wait for more."""
        if not self.protocol.may_wait:
            return False
        self._look_at = self._look_at or now + LONGEST_REST
        return now < self._look_at

    def look(self, own: Member, now: float) -> None:
        """Update :attr:`view`."""
        self._look_at = None
        self.protocol.bridge(outage=self.contact.outage(now))
        self.view = self.protocol.look(own)

    def next(self, own: Member, lease: int, now: float) -> Todo | None:
        """The next action for the view; None while etcd does not answer, or just after a failed call."""
        if not (self.contact.watching and self.contact.reachable):
            return None
        self.todo = self.protocol.next(self.view, own, lease, now)
        return self.todo if now >= self._retry_at else None

    def scope_changed(self, own: Member) -> bool:
        """Update :attr:`scope`; returns whether it changed."""
        before, self.scope = self.scope, self.protocol.scope(own)
        return before != self.scope

    def deadlines(self, now: float) -> Iterator[float]:
        """When to run again even without a change; the earliest counts.

        Deadlines that need etcd are left out while it is away: a deadline in the past would make the caller spin until
        etcd answers.
        """
        yield now + self._lease_ttl
        if self.todo is not None and self.todo.until is not None and self.contact.watching and self.contact.reachable:
            yield self.todo.until
        if self._retry_at > now:
            yield self._retry_at
        if self._look_at is not None:
            yield self._look_at
        if self.protocol.views.missing and self.contact.grace_until > now:
            yield self.contact.grace_until
