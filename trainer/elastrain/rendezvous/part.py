"""One member's part in the protocol between two answers of etcd: what it sees, what it does next, when it looks again.

No threads, sockets or clock: :class:`~elastrain.rendezvous.executor.Executor` feeds it and executes the result, and so
does the simulation (``tests/sim``). Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elastrain.api.keys import JobKeys
from elastrain.api.records import Member
from elastrain.etcd import Batch, Delete, EtcdError, Range
from elastrain.rendezvous.contact import Contact
from elastrain.rendezvous.decide import Timing
from elastrain.rendezvous.events import EtcdBack, EtcdLost, MembershipEvent
from elastrain.rendezvous.news import News
from elastrain.rendezvous.seat import LONGEST_REST, Seat, Todo
from elastrain.rendezvous.suspicion import Answers, Silent, whom_to_probe
from elastrain.rendezvous.view import View

RETRY_SECONDS = 0.5
"""After a call to etcd has failed nothing is written for so long."""


class Part:
    """Of one member, for one thread. ``own`` is always the member's record as it should be in etcd."""

    def __init__(
        self,
        keys: JobKeys,
        own: Member,
        *,
        lease_ttl: int,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        sees_all: bool = False,
    ) -> None:
        self.seat = Seat(keys, timing, sees_all=sees_all)
        self.contact = Contact(lease_ttl)
        self.view = View(self_id=own.id, complete=False)
        self.todo: Todo | None = None
        self.scope: tuple[Range, ...] = self.seat.scope(own)
        """What to watch now."""
        self._keys = keys
        self._lease_ttl = lease_ttl
        self._news = News()
        self._retry_at = 0.0
        self._look_at: float | None = None

    # ---- what comes from etcd --------------------------------------------------------------------------------------
    def take(self, batch: Batch, own: Member, now: float) -> bool:
        """The watch reports changes. Returns whether the own record is gone though the member lives: its lease ran out
        unnoticed, or another program has deleted it."""
        self.seat.take(batch, outage=self.contact.outage(now))
        key, mirror = self._keys.member(own.id), self.seat.mirror
        # It may also have gone before this watch began: then only a list of all members shows it.
        absent = batch.snapshot and mirror.complete and own.id not in mirror.members
        return absent or any(isinstance(e, Delete) and e.key == key for e in batch.events)

    def watch_says(self, error: EtcdError | None, connected: bool, now: float) -> EtcdBack | EtcdLost | None:
        """See :meth:`Contact.watch_says`."""
        return self.contact.watch_says(error, connected, now)

    def lease_says(self, error: EtcdError | None, now: float) -> EtcdBack | EtcdLost | None:
        """See :meth:`Contact.lease_says`."""
        return self.contact.lease_says(error, now)

    def put_off(self, now: float) -> None:
        """A call to etcd has failed: write nothing for a moment."""
        self._retry_at = now + RETRY_SECONDS

    # ---- a look, and what follows ----------------------------------------------------------------------------------
    def may_wait(self, now: float) -> bool:
        """Whether changes of members, and too few to matter, may be left until more have come."""
        if not self.seat.may_wait:
            return False
        self._look_at = self._look_at or now + LONGEST_REST
        return now < self._look_at

    def look(
        self, own: Member, suspects: frozenset[str], unsure: frozenset[str], unconfirmed: float, now: float
    ) -> Iterator[MembershipEvent]:
        """Make :attr:`view` anew, with what probes have found; yields what its owner has not been told.
        ``unconfirmed``: seconds since etcd last confirmed the lease."""
        self._look_at = None
        self.seat.bridge(outage=self.contact.outage(now))
        old, self.view = self.view, self.seat.look(own, suspects, unsure)
        yield from self._news.of(old, self.view, own)
        if fenced := self.contact.fenced(unconfirmed, self._news.generation(own.generation)):
            yield fenced

    def to_probe(self, view: View, own: Member, answers: Answers, now: float) -> Sequence[Silent]:
        """Members to be probed now; ``answers`` counts them as asked."""
        known = {m.id for m in view.members} if self.seat.leads(own) and view.complete else None
        return answers.due(whom_to_probe(view, own, self.seat.mirror.leader), known, now)

    def next(self, own: Member, lease: int, now: float) -> Todo | None:
        """What to do about the view; None while etcd does not answer, or has just failed."""
        if not (self.contact.watching and self.contact.reachable):
            return None
        self.todo = self.seat.next(self.view, own, lease, now)
        return self.todo if now >= self._retry_at else None

    def moves(self, own: Member) -> bool:
        """Whether :attr:`scope` is another one now."""
        before, self.scope = self.scope, self.seat.scope(own)
        return before != self.scope

    def deadlines(self, unconfirmed: float, now: float) -> Iterator[float]:
        """When to look again even if nothing happens; the least counts. Of what cannot be acted on while etcd is away
        none is named: a moment that has passed would have the caller look again and again until it is back."""
        yield now + self._lease_ttl
        if self.todo is not None and self.todo.until is not None and self.contact.watching and self.contact.reachable:
            yield self.todo.until
        fenced_in = self.contact.fenced_in(unconfirmed)
        if fenced_in is not None and fenced_in > 0:
            yield now + fenced_in
        if self._retry_at > now:
            yield self._retry_at
        if self._look_at is not None:
            yield self._look_at
        if self.seat.mirror.missing and self.contact.grace_until > now:
            yield self.contact.grace_until
