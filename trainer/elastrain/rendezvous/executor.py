"""The executor: the thread that does for one member what :class:`~elastrain.rendezvous.part.Part` says.

It takes what the watch brings, looks, decides, writes, on every change and at every deadline, and probes members that
fell silent when a generation broke. All state but the inbox is its own. Only the leader hears what others say about
themselves. While etcd is unreachable nobody acts.
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
from elastrain.etcd import Batch, EtcdClient, EtcdError, EtcdUnavailable, Lease, Watch, WatchState
from elastrain.rendezvous.decide import Action, Propose, Timing
from elastrain.rendezvous.events import MembershipEvent
from elastrain.rendezvous.part import Part
from elastrain.rendezvous.probe import Evidence
from elastrain.rendezvous.progress import ProgressPost
from elastrain.rendezvous.seat import Todo, rest_after
from elastrain.rendezvous.suspicion import Answers, Probes
from elastrain.rendezvous.view import View

log = logging.getLogger(__name__)

Clock = Callable[[], float]
_Item = Batch | Callable[[], None]
"""What the inbox holds: news from etcd, or something to do."""


class Executor:
    """One member's part in the protocol. What is not inside the thread may be called from any other."""

    def __init__(
        self,
        client: EtcdClient,
        keys: JobKeys,
        own: Callable[[], Member],
        progress: ProgressPost,
        emit: Callable[[MembershipEvent], None],
        *,
        lease_ttl: int,
        timing: Timing,
        clock: Clock,
        sees_all: bool,
    ) -> None:
        """``own``: the member's record as it is now; ``emit`` gets what happens, in order, from the thread."""
        self._client = client
        self._keys = keys
        self._own = own
        self._progress = progress
        self._emit = emit
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
        self._part = Part(keys, own(), lease_ttl=lease_ttl, timing=timing, sees_all=sees_all)
        self._view = self._part.view
        self._rest_until = 0.0
        self._answers = Answers(lease_ttl)
        self._probes = Probes(self._on_answer)

    @property
    def view(self) -> View:
        """The newest snapshot of the job."""
        return self._view

    @property
    def action(self) -> Action | None:
        """What was decided last."""
        return self._part.todo.action if self._part.todo else None

    @property
    def reachable(self) -> bool:
        """Whether etcd answers."""
        return self._part.contact.reachable

    def wait_for(self, condition: Callable[[View], bool], timeout: float) -> bool:
        """Block until a view meets ``condition``; False if none did within ``timeout`` seconds."""
        with self._viewed:
            return self._viewed.wait_for(lambda: condition(self._view), timeout)

    def start(self, lease: Lease, timeout: float) -> None:
        """Learn the state of the job, then act. Blocks. Raises ``EtcdError`` if that fails or takes longer than
        ``timeout`` seconds; :meth:`close` is still needed then."""
        self._lease = lease
        self._watch = self._client.watch(self._part.scope, self._on_batch, self._on_watch_state)
        if not self._listed.wait(timeout):
            raise EtcdUnavailable(
                self._client.wire.endpoint, f"list {self._keys.prefix}", f"not done within {timeout:g} s"
            )
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look: something has changed."""
        self._inbox.put(_nothing)

    def lease_state(self, error: EtcdError | None) -> None:
        """News of the lease: ``error`` keeps it from being renewed; None: nothing does."""
        self._inbox.put(lambda: self._tell(self._part.lease_says(error, self._clock())))

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
        self._probes.close()

    # ---- callbacks of the watch: into the inbox --------------------------------------------------------------------
    def _on_batch(self, batch: Batch) -> None:
        self._inbox.put(batch)
        self._listed.set()

    def _on_watch_state(self, state: WatchState) -> None:
        self._inbox.put(lambda: self._tell(self._part.watch_says(state.error, state.connected, self._clock())))

    def _on_answer(self, member_id: str, evidence: Evidence) -> None:
        self._inbox.put(lambda: self._answers.heard(member_id, evidence, self._clock()))

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
                self._part.put_off(self._clock())
            except Exception:
                log.exception("membership step failed")
                self._part.put_off(self._clock())

    def _may_wait(self, items: Sequence[_Item | None]) -> bool:
        """Only news of members have come, and too few to matter: more are waited for, for a moment."""
        if not items or not all(isinstance(item, Batch) for item in items):
            return False
        return self._part.may_wait(self._clock())

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
        deadlines = list(self._part.deadlines(self._seconds_unconfirmed(), now))
        if (due := self._progress.due) is not None and self._part.contact.reachable:
            deadlines.append(due)
        if self._answers.repeat_at is not None:
            deadlines.append(self._answers.repeat_at)
        return max(0.01, min(deadlines) - now)

    def _take(self, batch: Batch) -> None:
        own = self._own()
        gone = self._part.take(batch, own, self._clock())
        if self._lease is not None and gone:
            self._lease.rewrite(self._keys.member(own.id))

    def _tell(self, event: MembershipEvent | None) -> None:
        if event is not None:
            self._emit(event)

    def _step(self) -> None:
        now, busy = self._clock(), time.thread_time()
        if self._lease is not None:
            self._lease.mend()
        record = self._own()
        events = self._look(record, now)
        with self._viewed:
            self._view = self._part.view
            self._viewed.notify_all()
        for event in events:
            self._emit(event)
        lease = self._lease.id if self._lease is not None else 0
        todo = self._part.next(record, lease, now)
        self._rest_until = now + rest_after(time.thread_time() - busy)
        if todo is not None:
            self._do(todo, record)
        if self._part.contact.watching and self._part.contact.reachable:
            self._progress.write_if_due(now)
        if self._part.moves(record) and self._watch is not None:
            self._watch.move(self._part.scope)

    def _look(self, record: Member, now: float) -> list[MembershipEvent]:
        """A new view, with what probes have found; begins those that are due."""
        found = self._answers.of(record.id)
        events = list(self._part.look(record, *found, self._seconds_unconfirmed(), now))
        self._probes.ask(self._part.to_probe(self._part.view, record, self._answers, now))
        if self._answers.of(record.id) != found:
            events += self._part.look(record, *self._answers.of(record.id), self._seconds_unconfirmed(), now)
        return events

    def _do(self, todo: Todo, record: Member) -> None:
        if todo.part is not None:
            self._part.seat.found(record, todo.part, self._client.get(todo.part))
            self.wake()
        if todo.transaction is not None:
            done = self._client.commit(todo.transaction, todo.what)
            self._part.seat.tried(todo.transaction, self._clock())
            log.info("%s: %s%s", todo.what, "done" if done else "too late", _whom(todo))

    def _seconds_unconfirmed(self) -> float:
        return self._lease.seconds_since_confirmed() if self._lease is not None else 0.0


def _whom(todo: Todo) -> str:
    if not isinstance(todo.action, Propose):
        return ""
    workers = [m.worker for m in todo.action.generation.members[: roster.INLINE]]
    return f" ({todo.action.generation.reason}): {', '.join(workers) or 'nobody'}"


def _nothing() -> None:
    """An item that only wakes the thread."""
