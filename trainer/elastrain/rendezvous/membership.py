"""The executor: one object per agent that makes it a member of its job.

It holds the lease and the member's record, watches what :class:`~elastrain.rendezvous.seat.Seat` wants to know, does
what that says on every change and at every deadline, and probes members that fell silent when a generation broke. Its
owner changes the own record by :meth:`Membership.update` and hears the rest from the queue of
:mod:`~elastrain.rendezvous.events`.

    events: queue.Queue[MembershipEvent] = queue.Queue()
    member = Membership(client, keys, worker="digits-0", address="10.0.0.7", slots=1, events=events)
    member.start()                                    # registered with phase `warming`
    member.update(phase=Phase.READY, store_port=29500)
    event = events.get(timeout=60)                    # NewGeneration(...)
    member.update(generation=event.generation.number)

Cost: a member writes its own key per change of its own state; the leader adds one transaction per generation, of which
every member hears once. Only the leader hears what others say about themselves. While etcd is unreachable nobody acts
and :meth:`update` still returns at once: the newest record is written when etcd is back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from elastrain.api import names, roster
from elastrain.api.keys import JobKeys
from elastrain.api.records import Member, Phase, Progress
from elastrain.etcd import (
    Batch,
    Delete,
    EtcdClient,
    EtcdError,
    EtcdUnavailable,
    Lease,
    LeaseCallbacks,
    Watch,
    WatchState,
)
from elastrain.rendezvous.decide import Action, Propose, Timing
from elastrain.rendezvous.events import EtcdBack, EtcdLost, Fenced, MembershipEvent
from elastrain.rendezvous.news import News
from elastrain.rendezvous.progress import ProgressPost
from elastrain.rendezvous.seat import LONGEST_REST, Seat, Todo, rest_after
from elastrain.rendezvous.suspicion import Suspicion, whom_to_probe
from elastrain.rendezvous.view import View

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5

Clock = Callable[[], float]
_Item = Batch | Callable[[], None]
"""What the inbox holds: news from etcd, or something to do."""


class Membership:
    """This process as a member of a job. All methods are thread-safe and, but for the noted ones, do not block."""

    def __init__(
        self,
        client: EtcdClient,
        keys: JobKeys,
        *,
        worker: str,
        address: str,
        events: queue.Queue[MembershipEvent] | None = None,
        slots: int = 1,
        node: str = "",
        agent_port: int = 0,
        lease_ttl: int = names.DEFAULT_LEASE_TTL,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        clock: Clock = time.monotonic,
        sees_all: bool = False,
    ) -> None:
        """``sees_all``: :attr:`view` has all members although another one leads. That costs every member an event per
        change of any."""
        self.keys = keys
        self._events = events
        self.lease_ttl = lease_ttl
        self._client = client
        self._clock = clock
        self._record = Member(
            id=_new_id(worker), worker=worker, node=node, address=address, agent_port=agent_port, slots=slots
        )
        self._lock = threading.Lock()
        self._viewed = threading.Condition()
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lease: Lease | None = None
        self._watch: Watch | None = None
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._progress = ProgressPost(client, keys)
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        # What follows belongs to the thread alone.
        self._seat = Seat(keys, timing, sees_all=sees_all)
        self._scope = self._seat.scope(self._record)
        self._view = View(self_id=self._record.id, complete=False)
        self._todo: Todo | None = None
        self._rest_until = 0.0
        self._look_at: float | None = None
        self._suspicion = Suspicion(lease_ttl, clock, answered=lambda: self._inbox.put(_nothing))
        self._news = News()
        self._told_fenced = False
        self._retry_at = 0.0
        self._watching = False
        self._leased = True
        self._reachable = True
        self._grace_until = 0.0

    # ---- for the owner ---------------------------------------------------------------------------------------------
    @property
    def id(self) -> str:
        """The member id of this incarnation."""
        return self._record.id

    @property
    def record(self) -> Member:
        """The own record as last updated here (etcd may not have it yet)."""
        return self._record

    @property
    def view(self) -> View:
        """The newest snapshot of the job."""
        return self._view

    @property
    def action(self) -> Action | None:
        """What was decided last, and why: for logs and error messages."""
        return self._todo.action if self._todo else None

    @property
    def reachable(self) -> bool:
        """Whether etcd answers; if not, :attr:`view` is from before."""
        return self._reachable

    def wait_for(self, condition: Callable[[View], bool], timeout: float) -> bool:
        """Block until a view meets ``condition``; False if none did within ``timeout`` seconds."""
        with self._viewed:
            return self._viewed.wait_for(lambda: condition(self._view), timeout)

    def start(self, timeout: float = 10.0) -> None:
        """Register, and learn the state of the job. Blocks.

        Raises ``EtcdUnavailable`` or ``EtcdDenied`` if that fails, or takes longer than ``timeout`` seconds.
        """
        callbacks = LeaseCallbacks(on_regained=self._on_regained, on_state=self._on_lease_state)
        self._lease = self._client.lease(self.lease_ttl, callbacks)
        try:
            self._lease.set(self.keys.member(self.id), self._record.encode())
            if not self._lease.flush(timeout):
                raise EtcdUnavailable(self._client.wire.endpoint, "register", f"not done within {timeout:g} s")
            self._watch = self._client.watch(self._scope, self._on_batch, self._on_watch_state)
            if not self._listed.wait(timeout):
                raise EtcdUnavailable(
                    self._client.wire.endpoint, f"list {self.keys.prefix}", f"not done within {timeout:g} s"
                )
        except EtcdError:
            self._lease.close()
            if self._watch is not None:
                self._watch.close()
            raise
        self._thread.start()

    def update(self, **changes: Any) -> Member:
        """Change fields of the own record (``phase``, ``store_port``, ``generation``, ``step``, ``broken``, ...).

        Returns the record. Raises ``pydantic.ValidationError`` for a value that the record does not allow, and
        ``ValueError`` for ``id``: see :meth:`reincarnate`.
        """
        if "id" in changes:
            raise ValueError("a member's id changes by reincarnate() only")
        with self._lock:
            self._record = Member.model_validate({**self._record.model_dump(), **changes})
            self._write()
            return self._record

    def reincarnate(self, **changes: Any) -> Member:
        """Leave under the old id and register under a new one, warming, in no generation: the ranks were restarted."""
        with self._lock:
            old = self._record
            fresh = {
                **old.model_dump(),
                "id": _new_id(old.worker),
                "phase": Phase.WARMING,
                "store_port": 0,
                "generation": 0,
                "broken": 0,
                "restarts": old.restarts + 1,
            }
            self._record = Member.model_validate({**fresh, **changes})
            if self._lease is not None:
                self._lease.unset(self.keys.member(old.id))
            self._write()
            return self._record

    def publish(self, progress: Progress) -> None:
        """Write ``progress``, at most once a second; of several, the newest."""
        self._progress.put(self.id, progress)
        self._inbox.put(_nothing)

    def flush(self, timeout: float) -> bool:
        """Wait until etcd has the own record and the progress; False if that took longer than ``timeout`` seconds.

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

    def seconds_since_confirmed(self) -> float:
        """Age of the last confirmation that this member's lease lives."""
        return self._lease.seconds_since_confirmed() if self._lease is not None else 0.0

    def leave(self) -> None:
        """Delete the own key at once and stop. Blocks for a few seconds at most; a second call does nothing."""
        self._close(revoke=True)

    def close(self) -> None:
        """Stop without a word: to the others this member is dead when its lease has run out."""
        self._close(revoke=False)

    def _close(self, *, revoke: bool) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
        self._inbox.put(None)
        if self._lease is not None:
            self._lease.close(revoke=revoke)
        if self._watch is not None:
            self._watch.close()
        if self._thread.is_alive():
            self._thread.join(timeout=self._client.timeout + 1.0)
        self._suspicion.close()

    def _write(self) -> None:
        if self._lease is not None and not self._stopped.is_set():
            self._lease.set(self.keys.member(self._record.id), self._record.encode())
            self._inbox.put(_nothing)

    # ---- callbacks of lease and watch: into the inbox --------------------------------------------------------------
    def _on_batch(self, batch: Batch) -> None:
        self._inbox.put(batch)
        self._listed.set()

    def _on_watch_state(self, state: WatchState) -> None:
        self._inbox.put(lambda: self._set_reachable(state.error, watching=state.connected))

    def _on_lease_state(self, error: EtcdError | None) -> None:
        self._inbox.put(lambda: self._set_reachable(error, leased=error is None))

    def _on_regained(self) -> None:
        log.warning("the lease of %s had run out; registered again under the same id", self.id)

    # ---- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            items = self._next_items()
            if None in items:
                return
            try:
                for item in items:
                    assert item is not None
                    if isinstance(item, Batch):
                        self._take(item)
                    else:
                        item()
                if not self._may_wait(items):
                    self._step()
            except EtcdError as error:
                # The watch and the lease tell the owner about outages; here it only means: later.
                log.info("put off: %s", error)
                self._retry_at = self._clock() + _RETRY_SECONDS
            except Exception:
                log.exception("membership step failed")
                self._retry_at = self._clock() + _RETRY_SECONDS

    def _may_wait(self, items: Sequence[_Item | None]) -> bool:
        """Only news of members have come, and too few to matter: more are waited for, for a moment."""
        if not items or not all(isinstance(item, Batch) for item in items) or not self._seat.may_wait:
            return False
        now = self._clock()
        self._look_at = self._look_at or now + LONGEST_REST
        return now < self._look_at

    def _next_items(self) -> list[_Item | None]:
        """All that is in the inbox, after waiting for the first of it until the next deadline."""
        items: list[_Item | None] = []
        try:
            items.append(self._inbox.get(timeout=self._seconds_to_next_deadline()))
            rest = self._rest_until - self._clock()
            if rest > 0:
                self._stopped.wait(rest)
            while True:
                items.append(self._inbox.get_nowait())
        except queue.Empty:
            return items

    def _seconds_to_next_deadline(self) -> float:
        now = self._clock()
        deadlines = [now + self.lease_ttl]
        if self._todo is not None and self._todo.until is not None and self._watching:
            deadlines.append(self._todo.until)
        if (due := self._progress.due) is not None and self._reachable:
            deadlines.append(due)
        if not self._reachable and not self._told_fenced:
            deadlines.append(now + self.lease_ttl - self.seconds_since_confirmed())
        if self._retry_at > now:
            deadlines.append(self._retry_at)
        if self._look_at is not None:
            deadlines.append(self._look_at)
        if self._seat.mirror.missing and self._grace_until > now:
            deadlines.append(self._grace_until)
        deadlines += self._suspicion.deadlines()
        return max(0.01, min(deadlines) - now)

    @property
    def _outage(self) -> bool:
        return not self._reachable or self._clock() < self._grace_until

    def _take(self, batch: Batch) -> None:
        self._seat.take(batch, outage=self._outage)
        own, mirror = self.keys.member(self.id), self._seat.mirror
        deleted = any(isinstance(e, Delete) and e.key == own for e in batch.events)
        # It may also have gone before this watch began: then only a list of all members shows it.
        absent = batch.snapshot and mirror.complete and self.id not in mirror.members
        if self._lease is not None and (deleted or absent):
            self._lease.rewrite(own)  # not by us: our lease ran out unnoticed, or somebody was wrong about us

    def _set_reachable(
        self, error: EtcdError | None, *, watching: bool | None = None, leased: bool | None = None
    ) -> None:
        self._watching = self._watching if watching is None else watching
        self._leased = self._leased if leased is None else leased
        reachable = self._watching and self._leased
        if reachable == self._reachable:
            return
        self._reachable = reachable
        if reachable:
            self._told_fenced = False
            # Leases may have run out only because nobody could renew: everybody gets a TTL to come back.
            self._grace_until = self._clock() + self.lease_ttl
            self._emit(EtcdBack())
        elif error is not None:
            self._emit(EtcdLost(error))

    def _step(self) -> None:
        now, busy = self._clock(), time.thread_time()
        self._look_at = None
        record = self._record
        self._seat.bridge(outage=self._outage)
        old, view = self._view, self._look(record)
        with self._viewed:
            self._view = view
            self._viewed.notify_all()
        for event in self._news.of(old, view, record):
            self._emit(event)
        self._fence(record)
        if self._watching and self._reachable:
            lease = self._lease.id if self._lease is not None else 0
            self._todo = self._seat.next(view, record, lease, now)
            self._rest_until = now + rest_after(time.thread_time() - busy)
            if now >= self._retry_at:
                self._do(self._todo, record)
            self._progress.write_if_due(now)
        scope = self._seat.scope(record)
        if scope != self._scope and self._watch is not None:
            self._scope = scope
            self._watch.move(scope)

    def _look(self, record: Member) -> View:
        """The view, with what probes have found; begins those that are due."""
        suspects, unsure = self._suspicion.of(record.id)
        view = self._seat.look(record, suspects, unsure)
        known = {m.id for m in view.members} if self._seat.leads(record) and view.complete else None
        self._suspicion.look(whom_to_probe(view, record, self._seat.mirror.leader), known)
        found = self._suspicion.of(record.id)
        return view if found == (suspects, unsure) else self._seat.look(record, *found)

    def _do(self, todo: Todo, record: Member) -> None:
        if todo.part is not None:
            self._seat.found(record, todo.part, self._client.get(todo.part))
            self._inbox.put(_nothing)
        if todo.transaction is not None:
            done = self._client.commit(todo.transaction, todo.what)
            self._seat.tried(todo.transaction, self._clock())
            log.info("%s: %s%s", todo.what, "done" if done else "too late", _whom(todo))

    def _fence(self, record: Member) -> None:
        if self._reachable or self._told_fenced:
            return
        seconds = self.seconds_since_confirmed()
        generation = self._news.generation(record.generation)
        if seconds >= self.lease_ttl and generation is not None and generation.size == 1:
            self._told_fenced = True
            self._emit(Fenced(seconds))

    def _emit(self, event: MembershipEvent) -> None:
        if self._events is not None:
            self._events.put(event)


def _new_id(worker: str) -> str:
    return f"{worker}.{uuid.uuid4().hex[:8]}"


def _whom(todo: Todo) -> str:
    if not isinstance(todo.action, Propose):
        return ""
    workers = [m.worker for m in todo.action.generation.members[: roster.INLINE]]
    return f" ({todo.action.generation.reason}): {', '.join(workers) or 'nobody'}"


def _nothing() -> None:
    """An item that only wakes the thread."""
