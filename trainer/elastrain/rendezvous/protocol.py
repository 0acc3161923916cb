"""One member's part in the protocol, without I/O: records and time in; ranges to watch, reads and writes out.

:class:`~elastrain.rendezvous.driver.Driver` executes it for an agent, as does the simulation (``tests/sim``).
The writes are transactions with conditions on the records that they depend on: a stale one has no effect. Times are
seconds of the caller's monotonic clock.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from elastrain.api.keys import JobKeys
from elastrain.api.records import Ended, Generation, Leader, Member, roster
from elastrain.etcd import Batch, Delete, Event, Put, Range, Transaction
from elastrain.rendezvous.contact import Contact
from elastrain.rendezvous.decide import Action, Condemn, DecisionState, Nothing, Propose, Timing, Wait, decide, remember
from elastrain.rendezvous.election import Candidate, Claim, elect, place_in
from elastrain.rendezvous.view import View
from elastrain.rendezvous.view_builder import ViewBuilder, everything, own_part

_AGAIN_SECONDS = 2.0
"""Seconds after which a transaction without a visible effect is retried."""
LONGEST_REST = 0.25
"""Most seconds for which changes are collected instead of processed one by one."""
_RESTS = 4
RETRY_SECONDS = 0.5
"""Seconds without a write after a failed call to etcd."""


@dataclass(frozen=True, slots=True)
class Todo:
    """The next action. Execute it, then call again after the next change from the watch, or at ``until``."""

    action: Action
    """The decision for the job, and its reason."""
    transaction: Transaction | None = None
    what: str = ""
    """Completes "tried to ..."."""
    part: str | None = None
    """A key to read, for :meth:`ViewBuilder.found`."""
    until: float | None = None


class MemberProtocol:
    """One member between two answers of etcd: its view, its next transaction and its next deadline. For one thread.

    ``own`` is always the member's record as it should be in etcd, ``lease`` the id of its lease.
    """

    def __init__(
        self,
        keys: JobKeys,
        own: Member,
        *,
        lease_ttl: float,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        sees_all: bool = False,
        secret: bytes | None = None,
    ) -> None:
        """``sees_all``: watch all records even if another member leads. ``secret``: from which those of its generations
        are derived; None: a random one."""
        self.keys = keys
        self.contact = Contact(lease_ttl)
        self.views = ViewBuilder(keys)
        self.view = View(self_id=own.id, complete=False)
        """The member's view of the job, as of the last :meth:`look`."""
        self.todo: Todo | None = None
        """The last action."""
        self._lease_ttl = lease_ttl
        self._timing = timing
        self._sees_all = sees_all
        self._secret = secret or secrets.token_bytes(32)
        self._memory = DecisionState()
        self._led = False  # a leader has been seen
        self._vacant_since: float | None = None
        self._tried: tuple[Transaction, float] | None = None
        self._needed = 1
        self._news = 0
        self._retry_at = 0.0
        self._look_at: float | None = None
        self._scoped = (False, "")
        self.scope: tuple[Range, ...] = ()
        """The ranges to watch now."""
        self.scope_changed(own)

    def scope_changed(self, own: Member) -> bool:
        """Update :attr:`scope`; returns whether it changed. In a small job every member watches all records: the health
        check needs them."""
        target = self.views.state.target
        small = target is not None and target.max <= roster.INLINE
        leads = self.views.leader is not None and self.views.leader.member == own.id
        before, self._scoped = self._scoped, (self._sees_all or small or leads, own.id)
        if before == self._scoped:
            return False
        self.scope = everything(self.keys) if self._scoped[0] else own_part(self.keys, own.id)
        return True

    # ---- what comes from etcd --------------------------------------------------------------------------------------
    def take(self, batch: Batch, own: Member, now: float) -> bool:
        """Apply changes from the watch. Returns whether the own record must be written again: it is gone although the
        member lives (its lease expired unnoticed, or another client deleted the key), or a list shows a former one (of
        a restored snapshot)."""
        members = self.keys.members
        others = batch.snapshot or any(not _key_of(event).startswith(members) for event in batch.events)
        self._news += self._needed if others else len(batch.events)
        self.views.apply(batch, keep_missing=self.contact.outage(now))  # after an outage a vanished key proves nothing
        # The key may also have vanished before this watch started: then only a list of all members shows it.
        key, listed = self.keys.member(own.id), self.views.state.members.get(own.id)
        absent = batch.snapshot and self.views.complete and listed is None
        former = batch.snapshot and listed is not None and listed.record != own
        return absent or former or any(isinstance(e, Delete) and e.key == key for e in batch.events)

    def tried(self, transaction: Transaction, now: float) -> None:
        """The transaction was sent and answered; the watch shows its effect."""
        self._tried = (transaction, now)

    def put_off(self, now: float) -> None:
        """A call to etcd has failed: write nothing for :data:`RETRY_SECONDS`."""
        self._retry_at = now + RETRY_SECONDS

    # ---- a look, and what follows ----------------------------------------------------------------------------------
    def may_wait(self, now: float) -> bool:
        """Whether the changes since :meth:`next` are too few to change its result, and may wait for more. The leader of
        a large job thus need not examine all members again for each joiner."""
        if self._news >= self._needed:
            return False
        self._look_at = self._look_at or now + LONGEST_REST
        return now < self._look_at

    def look(self, own: Member, now: float) -> View:
        """Update :attr:`view`. During an outage and one lease TTL after it, members without a key count as missing;
        then as lost."""
        self._look_at = None
        if not self.contact.outage(now):
            self.views.drop_missing()
        elif self.views.complete and self.views.generation is not None:
            self.views.expect(self.views.generation)
        self.view = self.views.view(own.id)
        return self.view

    def next(self, own: Member, lease: int, now: float) -> Todo | None:
        """The next action for :attr:`view`; None while etcd does not answer, or just after a failed call."""
        if not self.contact.answers:
            return None
        self.todo = self._next(self.view, own, lease, now)
        return self.todo if now >= self._retry_at else None

    def deadlines(self, now: float) -> Iterator[float]:
        """When to run again even without a change; the earliest counts.

        Deadlines that need etcd are left out while it is away: a deadline in the past would make the caller spin until
        etcd answers.
        """
        yield now + self._lease_ttl
        if self.todo is not None and self.todo.until is not None and self.contact.answers:
            yield self.todo.until
        if self._retry_at > now:
            yield self._retry_at
        if self._look_at is not None:
            yield self._look_at
        if self.views.missing and self.contact.grace_until > now:
            yield self.contact.grace_until

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _next(self, view: View, own: Member, lease: int, now: float) -> Todo:
        self._news, self._needed = 0, 1
        if view.complete:
            self._memory = remember(self._memory, view, now, self._timing)
            action = decide(view, self._memory, now, self._timing)
            self._needed = action.changes if isinstance(action, Nothing) else 1
        else:
            self._memory = DecisionState()
            action = Nothing(f"{view.leader or 'no member'} leads")
        part = self.views.part_to_read(own.id) if not view.complete else None
        claim = elect(self._candidate(view, own, lease, now), now)
        transaction, what = None, ""
        if (lost := self.views.unsaved) is not None:
            transaction, what = self._restored(lost, view), f"restore generation {lost.number}"
        elif isinstance(claim, Claim):
            transaction, what = self._claim(claim, own, lease), "lead"
        elif isinstance(action, Propose):
            transaction, what = self._proposal(view, action), f"form generation {action.generation.number}"
        elif isinstance(action, Condemn):
            ended = Ended(numbers=action.numbers, why=action.why)
            unchanged = ((self.keys.leader, view.leader_mod_revision),)
            transaction, what = Transaction(unchanged, ((self.keys.ended, ended.encode()),)), "end a generation"
        if self._tried is not None and self._tried[0] == transaction and now < self._tried[1] + _AGAIN_SECONDS:
            return Todo(action, part=part, until=self._tried[1] + _AGAIN_SECONDS)
        times = [claim if isinstance(claim, float) else None, action.until if isinstance(action, Wait) else None]
        return Todo(action, transaction, what, part, min((t for t in times if t is not None), default=None))

    def _candidate(self, view: View, own: Member, lease: int, now: float) -> Candidate:
        leadership = self.views.state.leadership
        leader = self.views.leader.member if self.views.leader else None
        if leader is not None:
            self._led, self._vacant_since = True, None
        elif self._led and self._vacant_since is None:
            self._vacant_since = now
        return Candidate(
            member=own.id,
            lease=lease,
            leader=leader,
            leader_lease=leadership.lease if leadership else 0,
            mod_revision=leadership.mod_revision if leadership else 0,
            since=self._vacant_since,
            place=place_in(view.generation, own.id),
        )

    def _claim(self, claim: Claim, own: Member, lease: int) -> Transaction:
        leader = Leader(member=own.id, worker=own.worker, address=own.address)
        unchanged = ((self.keys.leader, claim.mod_revision),)
        return Transaction(unchanged, ((self.keys.leader, leader.encode()),), lease=lease)

    def _proposal(self, view: View, action: Propose) -> Transaction:
        keys = self.keys
        return self._written(
            self._with_secret(action.generation),
            ((keys.generation, action.expected_mod_revision), (keys.leader, view.leader_mod_revision)),
        )

    def _with_secret(self, generation: Generation) -> Generation:
        """The same one for each attempt to write it, so that a repeated transaction is equal to the former one."""
        secret = hmac.digest(self._secret, b"generation %d" % generation.number, "sha256")
        return generation.model_copy(update={"secret": secret.hex()})

    def _restored(self, lost: Generation, view: View) -> Transaction:
        """The generation that etcd has lost, and the target that its members obeyed."""
        made = self._written(lost, ((self.keys.generation, view.generation_mod_revision),))
        target = self.views.unsaved_target
        if target is None:
            return made
        unchanged = (*made.unchanged, (self.keys.target, self.views.state.target_mod_revision))
        return replace(made, unchanged=unchanged, puts=(*made.puts, (self.keys.target, target.encode())))

    def _written(self, generation: Generation, unchanged: tuple[tuple[str, int], ...]) -> Transaction:
        """The generation and its members in one transaction: a member that dies leaves all of it or nothing."""
        keys = self.keys
        parts = ((keys.roster(generation.number, i), p.encode()) for i, p in enumerate(roster.split(generation)))
        oldest = generation.number - roster.KEPT
        return Transaction(
            unchanged,
            puts=((keys.generation, roster.header(generation).encode()), *parts),
            deleted=Range(keys.rosters, end=keys.roster(oldest + 1)) if oldest > 0 else None,
        )


def rest_after(busy: float) -> float:
    """Seconds until the next evaluation of the job, after one that took ``busy`` seconds of processor time.

    For the leader of a large job that is milliseconds: it spends at most a fifth of its time on evaluations.
    """
    return min(LONGEST_REST, (1 + _RESTS) * busy)


def _key_of(event: Event) -> str:
    return event.kv.key if isinstance(event, Put) else event.key
