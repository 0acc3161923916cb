"""The driver: the thread that does for one member what :class:`~elastrain.rendezvous.protocol.MemberProtocol` says.

It takes what the watch brings, looks, decides, writes, on every change and at every deadline, and probes members that
fell silent when a generation broke. All state but the inbox is its own. Only the leader hears what others say about
themselves. While etcd is unreachable no member acts.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from elastrain.api import roster
from elastrain.api.keys import JobKeys
from elastrain.api.records import Member
from elastrain.etcd import Batch, Delete, EtcdClient, EtcdError, EtcdUnavailable, Lease, Watch, WatchState
from elastrain.rendezvous.contact import Contact
from elastrain.rendezvous.decide import Action, Propose, Timing
from elastrain.rendezvous.progress import ProgressPost
from elastrain.rendezvous.protocol import LONGEST_REST, MemberProtocol, Todo, rest_after
from elastrain.rendezvous.suspicion import Suspicion, whom_to_probe
from elastrain.rendezvous.view import View

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5

Clock = Callable[[], float]
_Item = Batch | Callable[[], None]
"""What the inbox holds: changes in etcd, or a call to make."""


class Driver:
    """One member's part in the protocol. What is not inside the thread may be called from any other."""

    def __init__(
        self,
        client: EtcdClient,
        keys: JobKeys,
        own: Callable[[], Member],
        progress: ProgressPost,
        on_change: Callable[[], None],
        *,
        lease_ttl: int,
        timing: Timing,
        clock: Clock,
        sees_all: bool,
    ) -> None:
        """``own``: the member's record as it is now. ``on_change`` is called from the thread after each new view and
        each change of :attr:`reachable` or :attr:`fenced`; it must not block."""
        self._client = client
        self._keys = keys
        self._own = own
        self._progress = progress
        self._on_change = on_change
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._viewed = threading.Condition()
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lease: Lease | None = None
        self._watch: Watch | None = None
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        # What follows is written by the thread alone.
        self._protocol = MemberProtocol(keys, timing, sees_all=sees_all)
        self._scope = self._protocol.scope(own())
        self._view = View(self_id=own().id, complete=False)
        self._todo: Todo | None = None
        self._rest_until = 0.0
        self._look_at: float | None = None
        self._suspicion = Suspicion(lease_ttl, clock, answered=self.wake)
        self._retry_at = 0.0
        self._contact = Contact(lease_ttl)

    @property
    def view(self) -> View:
        """The newest snapshot of the job."""
        return self._view

    @property
    def action(self) -> Action | None:
        """What was decided last."""
        return self._todo.action if self._todo else None

    @property
    def reachable(self) -> bool:
        """Whether etcd answers."""
        return self._contact.reachable

    @property
    def outage(self) -> EtcdError | None:
        """Why etcd does not answer; None: it does, or the reason is not known yet."""
        return self._contact.error

    @property
    def fenced(self) -> float | None:
        """See :attr:`elastrain.rendezvous.contact.Contact.fenced`."""
        return self._contact.fenced

    def wait_for(self, condition: Callable[[View], bool], timeout: float) -> bool:
        """Block until a view meets ``condition``; False if none did within ``timeout`` seconds."""
        with self._viewed:
            return self._viewed.wait_for(lambda: condition(self._view), timeout)

    def start(self, lease: Lease, timeout: float) -> None:
        """Learn the state of the job, then act. Blocks. Raises ``EtcdError`` if that fails or takes longer than
        ``timeout`` seconds; :meth:`close` is still needed then."""
        self._lease = lease
        self._watch = self._client.watch(self._scope, self._on_batch, self._on_watch_state)
        if not self._listed.wait(timeout):
            raise EtcdUnavailable(
                self._client.wire.endpoint, f"list {self._keys.prefix}", f"not done within {timeout:g} s"
            )
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look: something has changed."""
        self._inbox.put(_nothing)

    def lease_state(self, error: EtcdError | None) -> None:
        """Note the lease's state: ``error`` keeps it from being renewed; None: nothing does."""
        self._inbox.put(lambda: self._notify(self._contact.lease_reported(error, self._clock())))

    def stop(self) -> None:
        """Begin nothing new. Does not wait."""
        self._stopped.set()
        self._inbox.put(None)

    def close(self) -> None:
        """End watch and thread, after :meth:`stop`. Blocks for a few seconds at most."""
        if self._watch is not None:
            self._watch.close()
        if self._thread.is_alive():
            self._thread.join(timeout=self._client.timeout + 1.0)
        self._suspicion.close()

    # ---- callbacks of the watch: into the inbox --------------------------------------------------------------------
    def _on_batch(self, batch: Batch) -> None:
        self._inbox.put(batch)
        self._listed.set()

    def _on_watch_state(self, state: WatchState) -> None:
        self._inbox.put(lambda: self._notify(self._contact.watch_reported(state.error, state.connected, self._clock())))

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
        if not items or not all(isinstance(item, Batch) for item in items) or not self._protocol.may_wait:
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
        deadlines = [now + self._lease_ttl]
        if self._todo is not None and self._todo.until is not None and self._contact.watching:
            deadlines.append(self._todo.until)
        if (due := self._progress.due) is not None and self._contact.reachable:
            deadlines.append(due)
        if (fenced_in := self._contact.fenced_in(self._seconds_unconfirmed())) is not None:
            deadlines.append(now + fenced_in)
        if self._retry_at > now:
            deadlines.append(self._retry_at)
        if self._look_at is not None:
            deadlines.append(self._look_at)
        if self._protocol.views.missing and self._contact.grace_until > now:
            deadlines.append(self._contact.grace_until)
        deadlines += self._suspicion.deadlines()
        return max(0.01, min(deadlines) - now)

    def _take(self, batch: Batch) -> None:
        self._protocol.take(batch, outage=self._contact.outage(self._clock()))
        me, views = self._own().id, self._protocol.views
        own = self._keys.member(me)
        deleted = any(isinstance(e, Delete) and e.key == own for e in batch.events)
        # It may also have gone before this watch began: then only a list of all members shows it.
        absent = batch.snapshot and views.complete and me not in views.state.members
        if self._lease is not None and (deleted or absent):
            self._lease.rewrite(own)  # not by us: our lease ran out unnoticed, or another client deleted the key

    def _notify(self, changed: bool) -> None:
        if changed:
            self._on_change()

    def _step(self) -> None:
        now, busy = self._clock(), time.thread_time()
        self._look_at = None
        if self._lease is not None:
            self._lease.mend()
        record = self._own()
        self._protocol.bridge(outage=self._contact.outage(now))
        view = self._look(record)
        self._contact.check_fence(self._seconds_unconfirmed(), self._protocol.views.known(record.generation))
        with self._viewed:
            self._view = view
            self._viewed.notify_all()
        self._on_change()
        if self._contact.watching and self._contact.reachable:
            lease = self._lease.id if self._lease is not None else 0
            self._todo = self._protocol.next(view, record, lease, now)
            self._rest_until = now + rest_after(time.thread_time() - busy)
            if now >= self._retry_at:
                self._do(self._todo, record)
            self._progress.write_if_due(now)
        scope = self._protocol.scope(record)
        if scope != self._scope and self._watch is not None:
            self._scope = scope
            self._watch.move(scope)

    def _look(self, record: Member) -> View:
        """The view, with what probes have found; begins those that are due."""
        suspects, unsure = self._suspicion.of(record.id)
        view = self._protocol.look(record, suspects, unsure)
        known = {m.id for m in view.members} if self._protocol.leads(record) and view.complete else None
        self._suspicion.look(whom_to_probe(view, record, self._protocol.views.leader), known)
        found = self._suspicion.of(record.id)
        return view if found == (suspects, unsure) else self._protocol.look(record, *found)

    def _do(self, todo: Todo, record: Member) -> None:
        if todo.part is not None:
            self._protocol.found(record, todo.part, self._client.get(todo.part))
            self.wake()
        if todo.transaction is not None:
            done = self._client.commit(todo.transaction, todo.what)
            self._protocol.tried(todo.transaction, self._clock())
            log.info("%s: %s%s", todo.what, "done" if done else "too late", _whom(todo))

    def _seconds_unconfirmed(self) -> float:
        return self._lease.seconds_since_confirmed() if self._lease is not None else 0.0


def _whom(todo: Todo) -> str:
    if not isinstance(todo.action, Propose):
        return ""
    workers = [m.worker for m in todo.action.generation.members[: roster.INLINE]]
    return f" ({todo.action.generation.reason}): {', '.join(workers) or 'no members'}"


def _nothing() -> None:
    """An item that only wakes the thread."""
