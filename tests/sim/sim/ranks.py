"""A rank: the runtime's commit rule as a model.

The entry of a generation (``elastic.entry``), the vote on the switch (``elastic.control``) and the cut of a batch
(``data.order``) are the product's. In place of tensors there is a running digest of the samples.
"""

from __future__ import annotations

import signal
import zlib
from typing import TYPE_CHECKING, Any

from elastrain.api.heartbeat import Beat, Where
from elastrain.api.messages import (
    Abort,
    Adopted,
    AgentMessage,
    Broken,
    Exit,
    Finished,
    Hello,
    Left,
    Proposed,
    RankMessage,
    Ready,
    Report,
    Welcome,
)
from elastrain.api.records import Generation, Progress
from elastrain.data.order import Order
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.group.entry import Entry, EntryRow
from elastrain.elastic.reshard.restore import FRESH, ShardRef
from sim.comm import MEETING_TIMEOUT, Comm
from sim.process import Process

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.world import World

ORDER = Order(length=None, global_batch_size=7, shuffle=False)
REPORT = 4.0


def digest(before: int, samples: tuple[int, ...]) -> int:
    """The state after a step on these samples."""
    return zlib.crc32(repr(samples).encode(), before)


class Rank:
    """One process of training, from its start to its end."""

    def __init__(self, world: World, agent: Agent, local_rank: int, incarnation: int) -> None:
        self.world, self.agent = world, agent
        self.local_rank, self.incarnation = local_rank, incarnation
        self.process = Process(world.clock, f"{agent.worker}/{local_rank}.{incarnation}", agent.process.place)
        self.member = ""
        self.step = 0
        self.state = self.by = 0
        self.has_state = False
        self.comm: Comm | None = None
        self._old: Comm | None = None
        """The generation before, until the next one is entered."""
        self.number = 0
        """Of the newest generation adopted, or given up."""
        self.rank = 0
        self.size = 0
        self._told = 0
        self._newest: Generation | None = None
        self._proposed: dict[int, Generation] = {}
        self._connecting: dict[int, tuple[Comm, int]] = {}
        self._connected: dict[int, Comm] = {}
        self._failed: dict[int, str] = {}
        self._aborted: dict[int, str] = {}
        self._exit: str | None = None
        self._over: str | None = None
        """Why the current communicator is of no use."""
        self._agreed: int | None = None
        self._waits_after: int | None = None
        """It waits for a generation newer than this one; None: it trains or is not ready."""
        self._ended = False
        self._sums = 0
        self._reported = float("-inf")
        self._where, self._since = Where.STARTING, world.clock.now
        self._commits = 0
        world.ranks.append(self)
        self.process.after(world.rng.uniform(0.05, 1.5), self._start)

    @property
    def trains(self) -> bool:
        return self.comm is not None

    @property
    def beat(self) -> Beat | None:
        if not self.member:
            return None
        return Beat(self._where, self._since, self.number, self.size or 1, self._commits, 0.5, 0.5 * (self.size or 1))

    def _at(self, where: Where) -> None:
        self._where, self._since = where, self.world.clock.now

    # ---- start and end -----------------------------------------------------------------------------------------------
    def _start(self) -> None:
        self._say(Hello(local_rank=self.local_rank, pid=self.incarnation))

    def _say(self, message: RankMessage) -> None:
        self.agent.process.after(0.0005, self.agent.said, self, message)

    def _ready(self) -> None:
        if not self._ended:
            port = 9000 if self.local_rank == 0 else 0
            self._say(Ready(store_port=port, step=self.step))
            self._at(Where.RUNTIME)
            self._wait(0)

    def signalled(self, signum: int) -> None:
        """SIGTERM has no handler in a training script: both kill."""
        if self.process.alive:
            self.killed(signum)

    def killed(self, signum: int = signal.SIGKILL) -> None:
        if not self.process.alive:
            return
        self._gone()
        self.process.die()
        self.world.note_death(self)
        self.agent.process.after(0.002, self.agent.hung_up, self)
        self.agent.process.after(0.005, self.agent.exited, self, 0, int(signum))

    def _quit(self) -> None:
        """The script ends by itself, with 0."""
        self._gone()
        self.process.die()
        self.agent.process.after(0.002, self.agent.hung_up, self)
        self.agent.process.after(0.01, self.agent.exited, self, 0, 0)

    def _gone(self) -> None:
        self._ended = True
        for comm, number in self._connecting.values():
            comm.withdraw(number)
        for comm in (*self._connected.values(), self.comm, self._old):
            if comm is None:
                continue
            comm.give_up(self._rank_in(comm.generation) or 0, "ended")
        self._connecting, self._connected = {}, {}

    # ---- from the agent ----------------------------------------------------------------------------------------------
    def told(self, message: AgentMessage) -> None:
        if self._ended:
            return
        match message:
            case Welcome(member=member, step=step):
                self.member, self._told = member, step
                self.process.after(self.world.rng.uniform(0.1, 2.0), self._ready)
            case Proposed(generation=generation):
                self._take_proposal(generation)
            case Abort(generation=number, reason=reason):
                self._aborted[number] = reason
                if self.comm is not None and self.comm.generation.number == number:
                    self.broken(self.comm, reason)
                elif number in self._connected:
                    self._connected[number].give_up(self._rank_in(self._connected[number].generation) or 0, reason)
            case Exit(reason=reason):
                self._exit = reason
                if self.comm is not None and self.comm.generation.number != self.number:
                    self.broken(self.comm, f"exit: {reason}")
        self._go_on_waiting()

    def _rank_in(self, generation: Generation) -> int | None:
        place = generation.member(self.member)
        return None if place is None else place.rank_offset + self.local_rank

    def _take_proposal(self, generation: Generation) -> None:
        if self._newest is not None and generation.number <= self._newest.number:
            return
        self._newest = generation
        self._proposed = {n: p for n, p in self._proposed.items() if n > generation.number - control.SLOTS}
        self._proposed[generation.number] = generation
        for number in [n for n in self._connecting if n < generation.number]:
            comm, mine = self._connecting.pop(number)
            comm.withdraw(mine)
        mine = self._rank_in(generation)
        if mine is None:
            return
        comm = self.world.comm(generation)
        self._connecting[generation.number] = (comm, mine)
        self.process.after(0.001 + 0.01 * self.world.rng.random(), comm.arrive, mine, self)
        self.process.after(MEETING_TIMEOUT, self._no_meeting, generation.number)

    def _no_meeting(self, number: int) -> None:
        if number in self._connecting and not self._ended:
            comm, mine = self._connecting.pop(number)
            comm.withdraw(mine)
            self._failed[number] = "others have not come"
            self._go_on_waiting()

    def connected(self, comm: Comm) -> None:
        number = comm.generation.number
        mine = self._rank_in(comm.generation) or 0
        if self._ended or self._connecting.pop(number, None) is None:
            comm.give_up(mine, "called off")
            return
        self._connected[number] = comm
        if number in self._aborted:
            comm.give_up(mine, self._aborted[number])
        self._go_on_waiting()

    def broken(self, comm: Comm, why: str) -> None:
        """Connections of ``comm`` ended, or are called off."""
        mine = self._rank_in(comm.generation) or 0
        if self._ended or mine in comm.over:
            return
        comm.give_up(mine, why)
        if comm is self.comm:
            self._over = why
            self._settle()
        self._go_on_waiting()

    # ---- between steps: as elastic/group/world.py settles -----------------------------------------------------
    def _settle(self) -> None:
        """Be in a healthy generation, then compute the next step."""
        if self._ended:
            return
        if self.comm is not None and self._over is not None:
            self._say(Broken(generation=self.comm.generation.number, step=self.step, error=self._over))
            self.number = max(self.number, self.comm.generation.number)
            self._leave()
        if self.comm is None:
            self._wait(self.number)
        elif self._agreed is not None:
            number, self._agreed = self._agreed, None
            self._change_to(self._proposed[number], self._connected.pop(number, None))
        else:
            newest = self._newest.number if self._newest else 0
            for number in [n for n in self._connected if n < newest]:
                comm = self._connected.pop(number)
                comm.give_up(self._rank_in(comm.generation) or 0, "superseded")
            self._compute()

    def _leave(self) -> None:
        """Out of the present generation, and of the one before. (Their connections end in the background.)"""
        left, self.comm, self._old, self._over = (self.comm, self._old), None, None, None
        for comm in left:
            if comm is not None:
                comm.give_up(self._rank_in(comm.generation) or 0, "left")

    def _wait(self, after: int) -> None:
        self._at(Where.RUNTIME)
        self._agreed = None
        self._waits_after = after
        self._go_on_waiting()

    def _go_on_waiting(self) -> None:
        """As ``Session.wait_for_generation``: the newest, if it is there and connected."""
        after, g = self._waits_after, self._newest
        if after is None or self._ended:
            return
        if self._exit is not None:
            self._waits_after = None
            self._say(Left(step=self.step))
            self.process.after(0.05, self._quit)
            return
        if g is None or g.number <= after:
            return
        if self._rank_in(g) is None:
            self._waits_after = None
            self._change_to(g, None)
        elif g.number in self._connected:
            self._waits_after = None
            self._change_to(g, self._connected.pop(g.number))
        elif g.number in self._failed:
            self._say(Broken(generation=g.number, step=0, error=self._failed[g.number]))
            self._waits_after = g.number

    def _change_to(self, generation: Generation, comm: Comm | None) -> None:
        if comm is None:
            self.number = generation.number
            self._leave()
            self._say(Adopted(generation=generation.number, step=self.step))
            self._settle()
        else:
            self._enter(generation, comm)

    # ---- entry of a generation: state comes from the furthest --------------------------------------------------------
    def _enter(self, generation: Generation, comm: Comm) -> None:
        self._old, self.comm = self.comm, comm
        mine = self._rank_in(generation) or 0
        self._over = comm.over.get(mine)
        if self._over is not None:
            self._settle()
            return
        live = ShardRef(self.step if self.has_state else FRESH, 1, 0, self.by)
        row = EntryRow(live, size=self.size, reached=self.step, told=self._told, layout=1)

        def table(rows: dict[int, Any]) -> None:
            if self.comm is comm:
                self._table(generation, comm, {n: rows[n] for n in sorted(rows)})

        comm.give("entry", mine, (row, self.state), table)

    def _table(self, generation: Generation, comm: Comm, rows: dict[int, Any]) -> None:
        entry = Entry.of([row for row, _ in rows.values()])
        mine = self._rank_in(generation) or 0
        source = entry.sources[0]
        if entry.cold and mine == 0:
            self.world.note_cold(generation)
        seconds = 0.02 + 0.5 * self.world.rng.random() if entry.receivers and not entry.cold else 0.0
        step, state = (max(rows[source][0].step, 0), rows[source][1]) if not entry.cold else (0, 0)

        def moved(_: dict[int, Any]) -> None:
            if self.comm is not comm:
                return
            if mine in entry.receivers or entry.cold:
                self.step, self.state, self.by = step, state, rows[source][0].live.by
            self.has_state = True
            self._entered(generation, comm)

        # All have what was sent once the last one has it; who gives cannot go on before.
        self.process.after(seconds, comm.give, "state", mine, None, moved)

    def _entered(self, generation: Generation, comm: Comm) -> None:
        old, self._old = self._old, None
        if old is not None:
            old.give_up(self._rank_in(old.generation) or 0, "left")
        self.number = generation.number
        self.rank, self.size = self._rank_in(generation) or 0, comm.size
        self._sums = 0
        self._say(Adopted(generation=generation.number, step=self.step))
        self.world.note_entered(self, generation)
        self._reported = float("-inf")
        self._settle()

    # ---- a step ------------------------------------------------------------------------------------------------------
    def _compute(self) -> None:
        comm = self.comm
        assert comm is not None
        if self.step >= self.world.total_steps:
            self._at(Where.RUNTIME)
            comm.give(("end", self._sums), self.rank, None, lambda _: self._finished(comm))
            return
        self._at(Where.BODY)
        part = ORDER.slice(self.step, self.rank, self.size)
        seconds = self.world.step_seconds * (0.9 + 0.2 * self.world.rng.random())
        self.process.after(seconds, self._give, comm, part.indices)

    def _give(self, comm: Comm, indices: tuple[int, ...]) -> None:
        if self.comm is not comm or self._over is not None or self._ended:
            return
        self._at(Where.COLLECTIVE)
        connected = frozenset(n for n, c in self._connected.items() if (self._rank_in(c.generation) or 0) not in c.over)
        if self._newest is not None and self._rank_in(self._newest) is None:
            connected |= {self._newest.number}
        part = (control.encode(connected), indices, self.step, self.state)
        comm.give(self._sums, self.rank, part, lambda parts: self._summed(comm, parts, connected))

    def _unvouched(self, comm: Comm, parts: dict[int, Any], connected: frozenset[int], until: float | None) -> None:
        """Wait a while for the agent to vouch."""
        now = self.world.clock.now
        until = until or now + self.agent.core.settings.lease_ttl
        if now < until:
            self.process.after(0.1, self._summed, comm, parts, connected, until)
        else:
            self.broken(comm, "the agent does not vouch")

    def _summed(self, comm: Comm, parts: dict[int, Any], connected: frozenset[int], until: float | None = None) -> None:
        """``until``: how long to wait for the agent's vouch; None: as long as the product does."""
        if self.comm is not comm or self._over is not None or self._ended:
            return
        if not self.agent.vouching.vouch.covers(comm.generation.number, comm.generation.size, self.world.clock.now):
            self._unvouched(comm, parts, connected, until)
            return
        slots = [sum(column) for column in zip(*(vector for vector, *_ in parts.values()), strict=True)]
        agreed = Summed(slots, connected).agreed(comm.generation.number)
        samples = tuple(i for n in sorted(parts) for i in parts[n][1])
        self._sums += 1
        self.step += 1
        self._commits += 1
        self.state, self.by = digest(self.state, samples), comm.generation.number
        self._agreed = agreed
        self.world.note_commit(self, comm, parts)
        now = self.world.clock.now
        if self.rank == 0 and (now >= self._reported + REPORT or self.step >= self.world.total_steps):
            self._reported = now
            self._report(comm)
        self._settle()

    def _report(self, comm: Comm) -> None:
        g = comm.generation
        progress = Progress(
            generation=g.number, world_size=g.world_size, members=g.size, step=self.step,
            total_steps=self.world.total_steps, samples=ORDER.samples_before(self.step), loss=1.0, step_seconds=1.0,
        )  # fmt: skip
        self._say(Report(progress=progress))

    def _finished(self, comm: Comm) -> None:
        if self.comm is comm and self._over is None and not self._ended:
            self._say(Finished(step=self.step))
            self._at(Where.OUTSIDE)
            self._ended = True
            self.process.after(0.2 + 2.0 * self.world.rng.random(), self._quit)
