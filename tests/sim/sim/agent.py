"""An agent: the product's ``Core`` and ``MemberProtocol`` with simulated etcd, ranks and signals around them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from elastrain.agent.core import endings
from elastrain.agent.core.events import (
    Effect,
    End,
    Event,
    Fenced,
    KillRank,
    KillRanks,
    Leave,
    Publish,
    PublishProgress,
    Pulse,
    RankExited,
    RankHungUp,
    RankSaid,
    Registered,
    Reincarnate,
    Send,
    Signalled,
    StartRanks,
    Tick,
)
from elastrain.agent.core.machine import Core
from elastrain.agent.core.vouching import LeaseSeen, Vouching
from elastrain.agent.presence import snapshot
from elastrain.agent.settings import Settings
from elastrain.api.keys import JobKeys
from elastrain.api.messages import RankMessage
from elastrain.api.records import Closed, Member, Phase, Progress, Termination
from elastrain.etcd import Batch, EtcdError, Transaction
from elastrain.rendezvous.protocol import MemberProtocol
from elastrain.rendezvous.view import View
from sim.clock import Timer
from sim.etcd_client import Client, LeaseKeeper, WatchKeeper
from sim.process import Process
from sim.ranks import Rank

if TYPE_CHECKING:
    from sim.world import World

LOOK = 0.2
"""The agent looks at the job's records at least so often."""
PULSE = 10.0
PROGRESS_INTERVAL = 1.0


class Agent:
    """One agent in one worker. ``ended`` gets its last words."""

    def __init__(
        self,
        world: World,
        process: Process,
        settings: Settings,
        ended: Callable[[Termination], None],
        extra: bytes = b"",
    ) -> None:
        """``extra``: a JSON member that this agent adds to its record, as a newer version might."""
        self.world, self.process = world, process
        self.keys = JobKeys(settings.namespace, settings.job, settings.job_uid)
        self.worker, self.address = settings.worker, settings.address
        self.core = Core(settings)
        self.ranks: dict[int, Rank] = {}
        self.own = Member(
            id=self._new_id(),
            worker=self.worker,
            node=settings.node,
            pod=settings.pod,
            address=self.address,
            slots=settings.nproc,
            group=settings.group,
            place=settings.place,
            group_size=settings.group_size,
        )
        self.member = MemberProtocol(self.keys, self.own, lease_ttl=settings.lease_ttl)
        self.client = Client(process, world.network, world.etcd)
        self.lease = LeaseKeeper(self.client, settings.lease_ttl, self._lease_says, self._lease_answered)
        self.vouching = Vouching(settings.lease_ttl)
        self._ended, self._extra = ended, extra
        self._watch: WatchKeeper | None = None
        self._view: View | None = None
        self._turning: Timer | None = None
        self._deadline: Timer | None = None
        self._tick: Timer | None = None
        self._looking = False
        self._over = False
        self._waiting: Progress | None = None
        self._posting = False
        self._posted_at = float("-inf")
        self._flushed: list[Callable[[], None]] = []
        """To be called when no progress waits to be written."""
        self._declare()
        process.after(0.001, self._register)
        world.agents.append(self)

    # ---- registration ------------------------------------------------------------------------------------------------
    def _new_id(self) -> str:
        return f"{self.worker}.{self.world.rng.getrandbits(32):08x}"

    def _declare(self, *, later: bool = False) -> None:
        raw = self.own.encode()
        raw = raw[:-1] + self._extra + b"}" if self._extra else raw
        self.lease.set(self.keys.member(self.own.id), raw, later=later)

    def _register(self) -> None:
        if self.core.bounds.drain is not None and not self.lease.id:
            self._finish(endings.drained(0, "asked to stop before etcd could be reached"))
        elif not self.lease.is_clean:
            self.process.after(0.05 if self.lease.id else 0.3, self._register)
        elif self._watch is None:
            self._watch = WatchKeeper(self.client, self.member.scope, self._on_batch, self._watch_says)
            self._handle(Registered(self.own.id))
            self.process.after(PULSE, self._pulse)

    # ---- etcd --------------------------------------------------------------------------------------------------------
    def _lease_says(self, error: EtcdError | None) -> None:
        self.member.contact.lease_reported(error, self.process.clock.now)
        self._wake()

    def _lease_answered(self) -> None:
        self._vouch()
        self._wake()

    def _vouch(self) -> None:
        """The agent looks several times a second; here, when there is something to see."""
        now, contact = self.process.clock.now, self.member.contact
        newest = self.core.seen.generation.number if self.core.seen and self.core.seen.generation else 0
        alone = self.vouching.look(
            LeaseSeen(self.lease.confirmed, self.lease.id), newest, away=not contact.reachable, now=now
        )
        if alone is not None:
            self._handle(Fenced(self.lease.unconfirmed, alone=alone))

    def _watch_says(self, connected: bool, error: EtcdError | None) -> None:
        self.member.contact.watch_reported(error, connected, self.process.clock.now)
        self._wake()

    def _on_batch(self, batch: Batch) -> None:
        now = self.process.clock.now
        if self.member.take(batch, self.own, now):
            self.lease.rewrite(self.keys.member(self.own.id))
        self._wake()

    def _wake(self) -> None:
        """A turn of the executor, for all that has come by then."""
        if self._turning is None and not self._over and self._watch is not None:
            self._turning = self.process.after(0.001 + 0.004 * self.world.rng.random(), self._turn)

    def _turn(self) -> None:
        self._turning = None
        if self._over or self._watch is None:
            return
        now, own, member = self.process.clock.now, self.own, self.member
        before = member.view
        member.look(own, now)
        self._vouch()
        if member.view is not before:
            self._look_soon()
        todo = member.next(own, self.lease.id, now)
        if todo is not None and todo.transaction is not None:
            self._commit(todo.transaction)
        self._post()
        if member.scope_changed(own):
            self._watch.move(member.scope)
        self._sleep(now)

    def _commit(self, transaction: Transaction) -> None:
        def answered(_: bool) -> None:
            self.member.tried(transaction, self.process.clock.now)
            self._wake()

        self.member.tried(transaction, self.process.clock.now)  # one at a time: the executor blocks in the call
        self.client.call("commit", lambda: self.world.etcd.commit(transaction), answered, self._put_off)

    def _put_off(self, _: EtcdError) -> None:
        self.member.put_off(self.process.clock.now)
        self._wake()

    def _sleep(self, now: float) -> None:
        deadlines = [*self.member.deadlines(now)]
        if not self.member.contact.reachable and self.vouching.vouch.leased > now:
            deadlines.append(self.vouching.vouch.leased)
        if self._waiting is not None and self.member.contact.reachable:
            deadlines.append(self._posted_at + PROGRESS_INTERVAL)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.process.at(max(now + 0.01, min(deadlines)), self._turn_now)

    def _turn_now(self) -> None:
        if self._turning is None:
            self._turn()

    # ---- progress ----------------------------------------------------------------------------------------------------
    def _post(self, force: bool = False) -> None:
        now = self.process.clock.now
        if self._waiting is None or self._posting or (not force and now < self._posted_at + PROGRESS_INTERVAL):
            return
        if not force and not self.member.contact.answers:
            return
        taken, self._waiting = self._waiting, None
        self._posting, self._posted_at = True, now
        puts = [(self.keys.progress, taken.encode())]
        if taken.finished:
            puts.append((self.keys.closed, Closed(member=self.own.id, reason="Finished").encode()))
        etcd, transaction = self.world.etcd, Transaction((), tuple(puts))

        def failed(_: EtcdError) -> None:
            self._posting = False
            self._waiting = self._waiting or taken
            if self._flushed:
                self.process.after(0.5, self._post, True)

        def answered(_: bool) -> None:
            self._posting = False
            if self._flushed and self._waiting is None:
                flushed, self._flushed = self._flushed, []
                for then in flushed:
                    then()

        self.client.call("write progress", lambda: etcd.commit(transaction), answered, failed, 2.0)

    def _flush_then(self, then: Callable[[], None], seconds: float) -> None:
        """``then`` when progress is written, or after so many seconds."""
        left = [then]

        def once() -> None:
            if left:
                left.pop()()

        if self._waiting is None and not self._posting:
            once()
            return
        self._flushed.append(once)
        self.process.after(seconds, once)
        self._post(True)

    # ---- the core ----------------------------------------------------------------------------------------------------
    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            late = LOOK * self.world.rng.random() if self.world.rng.random() < 0.3 else 0.0
            self.process.after(0.001 + late, self._look)

    def _look(self) -> None:
        self._looking = False
        view = self.member.view
        if view is not self._view and view.revision and not self._over:
            self._view = view
            self._handle(snapshot(view))

    def _pulse(self) -> None:
        if not self._over:
            beats = {i: beat for i, rank in self.ranks.items() if (beat := rank.beat) is not None}
            self._handle(Pulse(self.core.incarnation, beats, self.member.contact.reachable))
            self.process.after(PULSE, self._pulse)

    def said(self, rank: Rank, message: RankMessage) -> None:
        """A rank has sent a message."""
        self._handle(RankSaid(rank.incarnation, rank.local_rank, message))

    def hung_up(self, rank: Rank) -> None:
        self._handle(RankHungUp(rank.incarnation, rank.local_rank))

    def exited(self, rank: Rank, code: int, signum: int) -> None:
        self._handle(RankExited(rank.incarnation, rank.local_rank, code, signum))

    def signalled(self) -> None:
        self._handle(Signalled(signal.SIGTERM))

    def _handle(self, event: Event) -> None:
        if self._over:
            return
        now = self.process.clock.now
        for effect in self.core.handle(event, now):
            self._execute(effect)
        if self._over:
            return
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if (deadline := self.core.deadline()) is not None:
            self._tick = self.process.at(max(now + 0.001, deadline), self._handle, Tick())

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Send(local_rank=local_rank, message=message):
                rank = self.ranks.get(local_rank)
                if rank is not None:
                    rank.process.after(0.0005, rank.told, message)
            case Publish():
                self._update(**asdict(effect))
            case PublishProgress(progress=progress):
                self._waiting = progress
                self._wake()
            case StartRanks(incarnation=incarnation):
                self._start_ranks(incarnation)
            case KillRanks(signum=signum):
                for rank in list(self.ranks.values()):
                    rank.signalled(signum)
            case KillRank(local_rank=local_rank):
                self.ranks[local_rank].signalled(signal.SIGKILL)
            case Reincarnate():
                self._reincarnate()
            case Leave():
                self._leave()
            case End(termination=termination):
                self._finish(termination)

    def _update(self, *, later: bool = False, **changes: object) -> None:
        self.own = self.own.model_copy(update=changes)
        self._declare(later=later)
        self._wake()

    def _reincarnate(self) -> None:
        old = self.own
        fresh = {"id": self._new_id(), "phase": Phase.WARMING, "store_port": 0, "generation": 0, "broken": 0}
        self.own = old.model_copy(update={**fresh, "restarts": old.restarts + 1})
        self.lease.unset(self.keys.member(old.id))
        self._declare()
        self.process.after(0.001, lambda: self._handle(Registered(self.own.id)))

    def _start_ranks(self, incarnation: int) -> None:
        self.world.note_start(self, incarnation)
        for local_rank in range(self.core.settings.nproc):
            self.ranks[local_rank] = Rank(self.world, self, local_rank, incarnation)

    def _leave(self) -> None:
        finished = self._waiting is not None and self._waiting.finished
        self._flush_then(self.lease.close, 30.0 if finished else 2.0)

    def _finish(self, termination: Termination) -> None:
        self._over = True
        if self._watch is not None:
            self._watch.close()

        def gone() -> None:
            self.lease.close()
            self._ended(termination)

        finished = self._waiting is not None and self._waiting.finished
        self._flush_then(gone, 30.0 if finished else 2.0)

    def died(self) -> None:
        """The container was killed: its ranks die with it."""
        self._over = True
        if self._watch is not None:
            self._watch.close()
        self.process.die()
        for rank in self.ranks.values():
            rank.killed()
