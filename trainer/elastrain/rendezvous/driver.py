"""The driver: the thread that executes the decisions of :class:`~elastrain.rendezvous.protocol.MemberProtocol`.

On every change from the watch and at every deadline it updates the view, decides and writes. It owns all state except
the inbox. Only the leader receives other members' records. While etcd is unreachable no member acts.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from elastrain import threads
from elastrain.api.keys import JobKeys
from elastrain.api.records import Member, roster
from elastrain.etcd import Batch, EtcdClient, EtcdError, EtcdUnavailable, Lease, Watch, WatchState
from elastrain.rendezvous.decide import Propose, Timing
from elastrain.rendezvous.progress import ProgressPost
from elastrain.rendezvous.protocol import MemberProtocol, Todo, rest_after
from elastrain.rendezvous.view import View

log = logging.getLogger(__name__)

Clock = Callable[[], float]
MOST_FAILURES = 10
"""Failed passes in a row, half a second apart, after which a member gives its part up."""
_Item = Batch | Callable[[], None]
"""An entry of the inbox: changes in etcd, or a call to make."""


class Driver:
    """One member's part in the protocol. All public methods may be called from any thread."""

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
        """``own``: returns the member's current record. ``on_change`` is called from the thread after each new view and
        each change of :attr:`reachable`; it must not block."""
        self._client = client
        self._keys = keys
        self._own = own
        self._progress = progress
        self._on_change = on_change
        self._clock = clock
        self._viewed = threading.Condition()
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lease: Lease | None = None
        self._watch: Watch | None = None
        self._listed = threading.Event()
        self._stopped = threading.Event()
        self._thread = threads.Thread(self._run, name="membership")
        # Only the thread writes the following attributes; the protocol's are for any to read.
        self.protocol = MemberProtocol(keys, own(), lease_ttl=lease_ttl, timing=timing, sees_all=sees_all)
        self._view = self.protocol.view
        self._rest_until = 0.0
        self._failures = 0
        """Passes in a row that ended by an error other than etcd's, the last of which is ``_failed``."""
        self._failed: Exception | None = None

    @property
    def view(self) -> View:
        """The newest snapshot of the job. Raises ``RuntimeError`` after :data:`MOST_FAILURES`: another member leads."""
        if self._failures >= MOST_FAILURES:
            raise RuntimeError(f"the membership failed {MOST_FAILURES} times in a row") from self._failed
        return self._view

    def wait_for(self, condition: Callable[[View], bool], timeout: float) -> bool:
        """Block until a view meets ``condition``; False if none did within ``timeout`` seconds."""
        with self._viewed:
            return self._viewed.wait_for(lambda: condition(self.view), timeout)

    def start(self, lease: Lease, timeout: float) -> None:
        """Read the state of the job, then start. Blocks. Raises ``EtcdError`` if that fails or takes longer than
        ``timeout`` seconds; call :meth:`close` even then."""
        self._lease = lease
        self._watch = self._client.watch(self.protocol.scope, self._on_batch, self._on_watch_state)
        if not self._listed.wait(timeout):
            raise EtcdUnavailable(
                self._client.wire.endpoint, f"list {self._keys.prefix}", f"not done within {timeout:g} s"
            )
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread after a change."""
        self._inbox.put(_nothing)

    def lease_state(self, error: EtcdError | None) -> None:
        """Note the lease's state: ``error`` of its last renewal; None: it succeeded."""
        self._inbox.put(lambda: self._notify(self.protocol.contact.lease_reported(error, self._clock())))

    def stop(self) -> None:
        """Start no further action. Does not wait."""
        self._stopped.set()
        self._inbox.put(None)

    def close(self) -> None:
        """End watch and thread, after :meth:`stop`. Blocks for a few seconds at most."""
        if self._watch is not None:
            self._watch.close()
        if self._thread.is_alive():
            self._thread.join(timeout=self._client.timeout + 1.0)

    # ---- callbacks of the watch: into the inbox --------------------------------------------------------------------
    def _on_batch(self, batch: Batch) -> None:
        self._inbox.put(batch)
        self._listed.set()

    def _on_watch_state(self, state: WatchState) -> None:
        contact = self.protocol.contact
        self._inbox.put(lambda: self._notify(contact.watch_reported(state.error, state.connected, self._clock())))

    # ---- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            items = self._next_items()
            if None in items:
                return None
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
                # The watch and the lease report outages to the owner; here the action is only postponed.
                log.info("postponed: %s", error)
                self.protocol.put_off(self._clock())
            except Exception as error:
                log.exception("membership step failed")
                self._failures, self._failed = self._failures + 1, error
                if self._failures >= MOST_FAILURES:
                    return self._on_change()  # the owner ends when it reads the view
                self.protocol.put_off(self._clock())
            else:
                self._failures = 0

    def _may_wait(self, items: Sequence[_Item | None]) -> bool:
        """Whether only members' records have changed, and too few for a decision: then wait for more."""
        if not items or not all(isinstance(item, Batch) for item in items):
            return False
        return self.protocol.may_wait(self._clock())

    def _next_items(self) -> list[_Item | None]:
        """All entries of the inbox, after waiting for the first one until the next deadline."""
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
        deadlines = list(self.protocol.deadlines(now))
        if (due := self._progress.due) is not None and self.protocol.contact.reachable:
            deadlines.append(due)
        return max(0.01, min(deadlines) - now)

    def _take(self, batch: Batch) -> None:
        own = self._own()
        if self.protocol.take(batch, own, self._clock()) and self._lease is not None:
            self._lease.rewrite(self._keys.member(own.id))

    def _notify(self, changed: bool) -> None:
        if changed:
            self._on_change()

    def _step(self) -> None:
        now, busy = self._clock(), time.thread_time()
        assert self._lease is not None and self._watch is not None
        self._lease.mend()
        record = self._own()
        with self._viewed:
            self._view = self.protocol.look(record, now)
            self._viewed.notify_all()
        self._on_change()
        todo = self.protocol.next(record, self._lease.id, now)
        self._rest_until = now + rest_after(time.thread_time() - busy)
        if todo is not None:
            self._do(todo, record)
        if self.protocol.contact.answers:
            self._progress.write_if_due(now)
        if self.protocol.scope_changed(record):
            self._watch.move(self.protocol.scope)

    def _do(self, todo: Todo, record: Member) -> None:
        if todo.part is not None:
            self.protocol.views.found(record.id, todo.part, self._client.get(todo.part))
            self.wake()
        if todo.transaction is not None:
            done = self._client.commit(todo.transaction, todo.what)
            self.protocol.tried(todo.transaction, self._clock())
            log.info("%s: %s%s", todo.what, "done" if done else "too late", _whom(todo))


def _whom(todo: Todo) -> str:
    if not isinstance(todo.action, Propose):
        return ""
    workers = [m.worker for m in todo.action.generation.members[: roster.INLINE]]
    return f" ({todo.action.generation.reason}): {', '.join(workers) or 'no members'}"


def _nothing() -> None:
    """An item that only wakes the thread."""
