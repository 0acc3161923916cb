"""One simulated member: an agent's own decisions (``Core``, ``MemberProtocol``), no threads, process or ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from bench_rendezvous.link import Link, Watching
from elastrain.agent.core.events import Effect, Event, JobSnapshot, Publish, RankSaid, Registered, Send, StartRanks
from elastrain.agent.core.machine import Core
from elastrain.agent.presence import snapshot
from elastrain.agent.settings import Settings
from elastrain.api.keys import JobKeys
from elastrain.api.messages import Abort, Adopted, Broken, Hello, Proposed, RankMessage, Ready
from elastrain.api.records import Generation, Member, Phase
from elastrain.etcd import Batch
from elastrain.rendezvous.decide import Timing
from elastrain.rendezvous.protocol import LONGEST_REST, MemberProtocol, Todo, rest_after
from elastrain.rendezvous.view import View

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class SimulatedMember:
    """Lives in one event loop. Its one rank is ready at once, and breaks its generation at an abort."""

    def __init__(
        self, link: Link, keys: JobKeys, worker: str, spawn: Spawn, knows: Callable[[Generation], None]
    ) -> None:
        self.link = link
        self.keys = keys
        self.lease = 0
        self.alive = True
        self.generation: Generation | None = None
        """The newest one of which it knows its place."""
        self._spawn = spawn
        self._knows = knows
        self.record = Member(id=f"{worker}.x", worker=worker, address="127.0.0.1")
        self._protocol = MemberProtocol(keys, Timing())
        self._core = Core(Settings(job=keys.job, job_uid=keys.uid, worker=worker, address="127.0.0.1"))
        self._watching = Watching(self._take)
        self._scope = self._protocol.scope(self.record)
        self.view = View(self_id=self.record.id, complete=False)
        self._last_seen: JobSnapshot | None = None
        self._due: asyncio.TimerHandle | None = None
        self._rest_until = 0.0
        self._writing = self._dirty = self._moving = False

    async def start(self, ttl: int) -> None:
        """As an agent does: lease, key, list and watch, ranks."""
        self.lease = await self.link.grant(ttl)
        await self.link.put(self.keys.member(self.record.id), self.record.encode(), self.lease)
        await self.link.watch(self._scope, self._watching)
        self._feed(Registered(self.record.id))

    async def die(self) -> None:
        """Its key vanishes."""
        self.alive = False
        self._watching.ended = True
        self.link.unwatch(self._watching)
        if self._due is not None:
            self._due.cancel()
        await self.link.revoke(self.lease)

    def rank_says(self, message: RankMessage) -> None:
        self._feed(RankSaid(self._core.incarnation, 0, message))

    def adopts(self, number: int) -> None:
        self.rank_says(Adopted(generation=number, step=number))

    def breaks(self, number: int) -> None:
        self.rank_says(Broken(generation=number, step=number, error="reset"))

    # ---- the view --------------------------------------------------------------------------------------------------
    def _take(self, batch: Batch) -> None:
        if self.alive:
            self._protocol.take(batch)
            later = LONGEST_REST if self._protocol.may_wait else 0.0
            self._wake_at(max(_now() + later, self._rest_until))

    def _wake_at(self, when: float) -> None:
        if self._due is not None:
            if self._due.when() <= when:
                return
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_at(when, self._react)

    def _react(self) -> None:
        self._due = None
        if not self.alive:
            return
        began, busy = _now(), time.thread_time()
        self.view = self._protocol.look(self.record)
        found = snapshot(self.view)
        if found != self._last_seen:
            self._last_seen = found
            self._feed(found)
        todo = self._protocol.next(self.view, self.record, self.lease, began)
        if todo.part is not None or todo.transaction is not None:
            self._spawn(self._do(todo))
        scope = self._protocol.scope(self.record)
        if scope != self._scope and not self._moving:
            self._moving = True
            self._scope = scope
            self._spawn(self._move())
        self._rest_until = began + rest_after(time.thread_time() - busy)
        deadlines = [t for t in (todo.until, self._core.deadline()) if t is not None]
        if deadlines:
            self._wake_at(max(min(deadlines), self._rest_until))

    # ---- what it does ----------------------------------------------------------------------------------------------
    async def _do(self, todo: Todo) -> None:
        if todo.part is not None:
            self._protocol.found(self.record, todo.part, await self.link.get(todo.part))
            self._wake_at(_now())
        if todo.transaction is not None:
            self._protocol.tried(todo.transaction, _now())  # an agent waits for the answer; here others go on meanwhile
            await self.link.commit(todo.transaction)

    async def _move(self) -> None:
        self.link.unwatch(self._watching)
        await self.link.watch(self._scope, self._watching)
        self._moving = False

    def _feed(self, event: Event) -> None:
        for effect in self._core.handle(event, _now()):
            self._execute(effect)

    def _execute(self, effect: Effect) -> None:
        match effect:
            case StartRanks():
                self.rank_says(Hello(local_rank=0, pid=1))
                self.rank_says(Ready(store_port=1))
            case Send(message=Proposed(generation=generation)):
                self.generation = generation
                if generation.member(self.record.id) is not None:
                    self._knows(generation)
            case Send(message=Abort(generation=number)):
                self.breaks(number)
            case Publish():
                self.record = self.record.model_copy(
                    update={
                        "phase": effect.phase, "generation": effect.generation, "step": effect.step,
                        "broken": effect.broken, "store_port": effect.store_port,
                    }
                )  # fmt: skip
                self._dirty = self._dirty or not effect.later
                if self._dirty and not self._writing:
                    self._writing = True
                    self._spawn(self._write())
            case _:
                pass  # Welcome

    async def _write(self) -> None:
        while self._dirty and self.alive:
            self._dirty = False
            await self.link.put(self.keys.member(self.record.id), self.record.encode(), self.lease)
        self._writing = False

    @property
    def leads(self) -> bool:
        return self.alive and self.view.complete and self.view.leader == self.record.id

    @property
    def ready(self) -> bool:
        return self.record.phase is Phase.READY


def _now() -> float:
    return asyncio.get_running_loop().time()
