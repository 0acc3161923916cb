"""The executor: one object per agent that makes it a member of its job.

It holds the lease and the member's record, mirrors the job's records, runs :func:`~elastrain.rendezvous.decide.decide`
on every change and at every deadline, writes the generation when this member leads, and probes members that fell
silent when a generation broke. Its owner changes the own record by :meth:`Membership.update` and hears the rest from
the queue of :mod:`~elastrain.rendezvous.events`.

    events: queue.Queue[MembershipEvent] = queue.Queue()
    member = Membership(client, keys, worker="digits-0", address="10.0.0.7", slots=1, events=events)
    member.start()                                    # registered with phase `warming`
    member.update(phase=Phase.READY, store_port=29500)
    event = events.get(timeout=60)                    # NewGeneration(...)
    member.update(generation=event.generation.number)

Cost: a member writes its own key per change of its own state; the leader adds one write per generation. While etcd is
unreachable nobody acts and :meth:`update` still returns at once: the newest record is written when etcd is back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, Member, Phase, Progress
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
from elastrain.rendezvous.decide import Action, Memory, Propose, Timing, Wait, decide, remember
from elastrain.rendezvous.events import (
    EtcdBack,
    EtcdLost,
    Fenced,
    JobEnded,
    MemberLost,
    MembershipEvent,
    NewGeneration,
    TargetChanged,
)
from elastrain.rendezvous.mirror import Mirror
from elastrain.rendezvous.suspicion import Suspicion
from elastrain.rendezvous.view import View

log = logging.getLogger(__name__)

PROGRESS_INTERVAL = 1.0
"""Least seconds between two writes of ``progress``."""
_RETRY_SECONDS = 0.5
_REMEMBERED_GENERATIONS = 16

Clock = Callable[[], float]


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
    ) -> None:
        self.keys = keys
        self._events = events
        self.lease_ttl = lease_ttl
        self._client = client
        self._timing = timing
        self._clock = clock
        self._record = Member(
            id=_new_id(worker), worker=worker, node=node, address=address, agent_port=agent_port, slots=slots
        )
        self._lock = threading.Lock()
        self._viewed = threading.Condition()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lease: Lease | None = None
        self._watch: Watch | None = None
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._progress: Progress | None = None
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        # What follows belongs to the thread alone.
        self._mirror = Mirror(keys)
        self._view = View(self_id=self._record.id)
        self._memory = Memory()
        self._action: Action | None = None
        self._suspicion = Suspicion(lease_ttl, clock, answered=lambda: self._inbox.put(_nothing))
        self._generations: dict[int, Generation] = {}
        self._told_lost: set[tuple[int, str]] = set()
        self._told_ended = False
        self._told_fenced = False
        self._proposed_at = -1  # mod_revision of the generation that we last tried to replace
        self._retry_at = 0.0
        self._watching = False
        self._leased = True
        self._reachable = True
        self._grace_until = 0.0
        self._progress_at = -PROGRESS_INTERVAL

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
        return self._action

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
            self._watch = self._client.watch_prefix(self.keys.prefix, self._on_batch, self._on_watch_state)
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
        with self._lock:
            self._progress = progress
        self._inbox.put(_nothing)

    def flush(self, timeout: float) -> bool:
        """Wait until etcd has the own record and the progress; False if that took longer than ``timeout`` seconds.

        Raises ``EtcdDenied`` if etcd refuses the write.
        """
        deadline = time.monotonic() + timeout
        if self._lease is not None and not self._lease.flush(timeout):
            return False
        with self._lock:
            progress, self._progress = self._progress, None
        if progress is None:
            return True
        try:
            self._client.put(self.keys.progress, progress.encode(), timeout=max(0.1, deadline - time.monotonic()))
        except EtcdUnavailable:
            with self._lock:
                self._progress = self._progress or progress
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

    # ---- callbacks of lease and watch: into the inbox --------------------------------------------------------------
    def _on_batch(self, batch: Batch) -> None:
        self._inbox.put(lambda: self._take(batch))
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
                    item()
                self._step()
            except EtcdError as error:
                # The watch and the lease tell the owner about outages; here it only means: later.
                log.info("put off: %s", error)
                self._retry_at = self._clock() + _RETRY_SECONDS
            except Exception:
                log.exception("membership step failed")
                self._retry_at = self._clock() + _RETRY_SECONDS

    def _next_items(self) -> list[Callable[[], None] | None]:
        """All that is in the inbox, after waiting for the first of it until the next deadline."""
        items: list[Callable[[], None] | None] = []
        try:
            items.append(self._inbox.get(timeout=self._seconds_to_next_deadline()))
            while True:
                items.append(self._inbox.get_nowait())
        except queue.Empty:
            return items

    def _seconds_to_next_deadline(self) -> float:
        now = self._clock()
        deadlines = [now + self.lease_ttl]
        if isinstance(self._action, Wait) and self._watching:
            deadlines.append(self._action.until)
        if self._progress is not None and self._reachable:
            deadlines.append(self._progress_at + PROGRESS_INTERVAL)
        if not self._reachable and not self._told_fenced:
            deadlines.append(now + self.lease_ttl - self.seconds_since_confirmed())
        if self._retry_at > now:
            deadlines.append(self._retry_at)
        if self._mirror.missing and self._grace_until > now:
            deadlines.append(self._grace_until)
        deadlines += self._suspicion.deadlines()
        return max(0.01, min(deadlines) - now)

    def _take(self, batch: Batch) -> None:
        self._mirror.apply(batch, keep_missing=not self._reachable or self._clock() < self._grace_until)
        own = self.keys.member(self.id)
        if self._lease is not None and any(isinstance(e, Delete) and e.key == own for e in batch.events):
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
        now = self._clock()
        record = self._record
        if self._mirror.missing and self._reachable and now >= self._grace_until:
            self._mirror.drop_missing()
        seen = self._mirror.view(record.id)
        self._suspicion.look(seen)
        suspects, unsure = self._suspicion.of(seen)
        old = self._view
        with self._viewed:
            self._view = self._mirror.view(record.id, suspects, unsure)
            self._viewed.notify_all()
        if old.generation_mod_revision != self._view.generation_mod_revision:
            self._proposed_at = -1
        self._tell(old, self._view, record)
        self._fence(record)
        if self._watching and self._reachable:
            self._memory = remember(self._memory, self._view, now, self._timing)
            self._action = decide(self._view, self._memory, now, self._timing)
            if isinstance(self._action, Propose) and now >= self._retry_at:
                self._propose(self._action)
            self._write_progress(now)

    def _propose(self, action: Propose) -> None:
        if action.expected_mod_revision == self._proposed_at:
            return  # tried; the watch will bring what came of it
        generation = action.generation
        won, _ = self._client.compare_and_swap(
            self.keys.generation, generation.encode(), expected_mod_revision=action.expected_mod_revision
        )
        self._proposed_at = action.expected_mod_revision
        workers = ", ".join(m.worker for m in generation.members) or "nobody"
        log.info("generation %d (%s): %s%s", generation.number, generation.reason, workers, "" if won else ": too late")

    def _write_progress(self, now: float) -> None:
        if now < self._progress_at + PROGRESS_INTERVAL:
            return
        with self._lock:
            progress, self._progress = self._progress, None
        if progress is None:
            return
        self._progress_at = now
        try:
            self._client.put(self.keys.progress, progress.encode(), timeout=2.0)
        except EtcdError:
            with self._lock:
                self._progress = self._progress or progress
            raise

    def _fence(self, record: Member) -> None:
        if self._reachable or self._told_fenced:
            return
        seconds = self.seconds_since_confirmed()
        generation = self._generations.get(record.generation)
        if seconds >= self.lease_ttl and generation is not None and len(generation.members) == 1:
            self._told_fenced = True
            self._emit(Fenced(seconds))

    def _tell(self, old: View, view: View, record: Member) -> None:
        if view.target is not None and view.target != old.target:
            self._emit(TargetChanged(view.target))
        newest = view.generation
        if newest is not None and (old.generation is None or newest.number > old.generation.number):
            self._generations[newest.number] = newest
            for number in [n for n in self._generations if n < newest.number - _REMEMBERED_GENERATIONS]:
                del self._generations[number]
            self._emit(NewGeneration(newest))
        for generation in self._generations.values():
            if generation.number >= record.generation and generation.member(record.id) is not None:
                self._tell_lost(generation, view)
        if view.ended and not self._told_ended:
            self._told_ended = True
            self._emit(JobEnded(self._why_ended(view)))

    def _tell_lost(self, generation: Generation, view: View) -> None:
        for m in generation.members:
            if m.id in view.alive or m.id == view.self_id or (generation.number, m.id) in self._told_lost:
                continue
            self._told_lost.add((generation.number, m.id))
            why = "does not answer at its port" if m.id in view.suspects else "has no key in etcd any more"
            self._emit(MemberLost(generation.number, m.id, f"{m.worker} {why}"))

    def _emit(self, event: MembershipEvent) -> None:
        if self._events is not None:
            self._events.put(event)

    def _why_ended(self, view: View) -> str:
        closed = self._mirror.closed
        if closed is not None:
            return f"closed by {closed.member}: {closed.reason} {closed.message}".rstrip()
        if view.finished:
            return "the job has finished"
        return "a member has finished training"


def _new_id(worker: str) -> str:
    return f"{worker}.{uuid.uuid4().hex[:8]}"


def _nothing() -> None:
    """An item that only wakes the thread."""
