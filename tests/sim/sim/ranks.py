"""A rank: the product's machine (``elastic.group.core``) with a simulated training thread and connections around it.

The entry of a generation (``elastic.group.entry``), the vote on the switch (``elastic.commit.control``) and the cut of
a batch (``data.order``) are the product's, too. In place of tensors there is a running digest of the samples.
"""

from __future__ import annotations

import signal
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from elastrain.api.messages import AgentMessage, Finished, Hello, Left, RankMessage, Report, Welcome
from elastrain.api.pages.heartbeat import Beat, Where
from elastrain.api.records import Generation, Progress
from elastrain.data.order import Order
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.group.entry import Entry, EntryRow
from elastrain.elastic.group.machine import events as e
from elastrain.elastic.group.machine.core import Core
from elastrain.elastic.group.machine.states import State
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


class Connection(NamedTuple):
    """Of a rank, to the others of a generation."""

    comm: Comm
    rank: int
    generation: Generation


class Rank:
    """One process of training, from its start to its end."""

    def __init__(self, world: World, agent: Agent, local_rank: int, incarnation: int) -> None:
        self.world, self.agent = world, agent
        self.local_rank, self.incarnation = local_rank, incarnation
        self.process = Process(world.clock, f"{agent.worker}/{local_rank}.{incarnation}", agent.process.place)
        self.core: Core | None = None
        """None until the agent's welcome."""
        self.step = 0
        self.state = self.by = 0
        self.has_state = False
        self._effects: deque[e.Effect] = deque()
        self._executes = False
        self._connecting: dict[int, Connection] = {}
        self._open: dict[int, Connection] = {}
        self._works: Connection | None = None
        """What the training thread computes or exchanges over; None: it waits for an instruction."""
        self._size = 1
        self._stands_back = self._ended = False
        self._sums = 0
        self._reported = float("-inf")
        self._where, self._since = Where.STARTING, world.clock.now
        self._commits = 0
        world.ranks.append(self)
        self.process.after(world.rng.uniform(0.05, 1.5), self._say, Hello(local_rank=local_rank, pid=incarnation))

    @property
    def member(self) -> str:
        return self.core.welcome.member if self.core else ""

    @property
    def comm(self) -> Comm | None:
        """The one that it works with."""
        return self._works.comm if self._works else None

    @property
    def rank(self) -> int:
        """Its number there."""
        return self._works.rank if self._works else 0

    @property
    def beat(self) -> Beat | None:
        if self.core is None:
            return None
        return Beat(self._where, self._since, self.core.number, self._size, self._commits, 0.5, 0.5 * self._size)

    def _at(self, where: Where) -> None:
        self._where, self._since = where, self.world.clock.now

    # ---- start and end -----------------------------------------------------------------------------------------------
    def _say(self, message: RankMessage) -> None:
        self.agent.process.after(0.0005, self.agent.said, self, message)

    def told(self, message: AgentMessage) -> None:
        if self._ended:
            return
        if self.core is None:
            assert isinstance(message, Welcome)
            self.core = Core(message, self.local_rank)
            self.process.after(self.world.rng.uniform(0.1, 2.0), self._ready)
            return
        self._feed(message)
        if self._stands_back and self.core.state is State.REPLACED:
            self._stands_back = False
            self._feed(e.Renewed())
            self._ready()

    def _ready(self) -> None:
        if not self._ended:
            self._feed(e.Ready(9000 if self.local_rank == 0 else 0, self.step))
            self._boundary()

    def signalled(self, signum: int) -> None:
        """SIGTERM has no handler in a training script: both kill."""
        if self.process.alive:
            self.killed(signum)

    def killed(self, signum: int = signal.SIGKILL) -> None:
        if not self.process.alive:
            return
        self.world.note_death(self)
        self._exit(0, int(signum), 0.005)

    def _exit(self, code: int = 0, signum: int = 0, seconds: float = 0.01) -> None:
        """The process ends; without a code or signal, since its script has."""
        self._ended = True
        for connecting in self._connecting.values():
            connecting.comm.withdraw(connecting.rank)
        for connection in self._open.values():
            connection.comm.give_up(connection.rank, "ended")
        self._connecting, self._open = {}, {}
        self.process.die()
        self.agent.process.after(0.002, self.agent.hung_up, self)
        self.agent.process.after(seconds, self.agent.exited, self, code, signum)

    # ---- the machine -------------------------------------------------------------------------------------------------
    def _feed(self, event: e.Event) -> None:
        assert self.core is not None
        self._effects.extend(self.core.handle(event, self.world.clock.now))
        if self._executes:
            return
        self._executes = True
        while self._effects and not self._ended:
            self._execute(self._effects.popleft())
        self._executes = False
        for number in [n for n, c in self._connecting.items() if not self.core.needs(c.generation)]:
            superseded = self._connecting.pop(number)
            superseded.comm.withdraw(superseded.rank)

    def _execute(self, effect: e.Effect) -> None:
        match effect:
            case e.Send(message=message):
                self._say(message)
            case e.Connect(generation=generation, rank=rank):
                comm = self.world.comm(generation)
                self._connecting[generation.number] = Connection(comm, rank, generation)
                self.process.after(0.001 + 0.01 * self.world.rng.random(), comm.arrive, rank, self)
                self.process.after(MEETING_TIMEOUT, self._no_meeting, generation)
            case e.CallOff(number=number, why=why) | e.Abort(number=number, why=why):
                if (connection := self._open.get(number)) is not None:
                    connection.comm.give_up(connection.rank, why)
                    self._interrupt(number, why)
            case e.Close(number=number):
                if (connection := self._open.pop(number, None)) is not None:
                    connection.comm.give_up(connection.rank, "left")
            case _:
                self._instructed(effect)

    def _instructed(self, instruction: e.Instruction) -> None:
        match instruction:
            case e.Train():
                self._compute()
            case e.Enter(generation=generation):
                self._enter(self._open[generation.number])
            case e.GiveUp(number=number, why=why):
                self._feed(e.GaveUp(number, self.step, why))
                self._boundary()
            case e.StopFor(generation=generation):
                self._feed(e.Stopped(generation.number, self.step))
                self._boundary()
            case e.StandBack():
                self._stands_back = True
            case e.Leave():
                self._say(Left(step=self.step))
                self.process.after(0.05, self._exit)
            case e.Fail():
                self._exit(1)

    def _boundary(self) -> None:
        self._works = None
        self._at(Where.RUNTIME)
        self._feed(e.Boundary(holds=self.has_state))

    def _interrupt(self, number: int, why: str) -> None:
        """The training thread sees the end of what it works with."""
        if self._works is None or self._works.generation.number != number:
            return
        assert self.core is not None
        self._works = None
        if self.core.entering is not None and self.core.entering.number == number:
            self._feed(e.GaveUp(number, self.step, why))
        self._boundary()

    # ---- connections -------------------------------------------------------------------------------------------------
    def _no_meeting(self, generation: Generation) -> None:
        connecting = self._connecting.get(generation.number)
        if connecting is not None and connecting.generation is generation and not self._ended:
            del self._connecting[generation.number]
            connecting.comm.withdraw(connecting.rank)
            self._feed(e.NotConnected(generation, "others have not come", own=False))

    def connected(self, comm: Comm) -> None:
        connection = self._connecting.pop(comm.generation.number, None)
        if connection is not None:
            self._open[comm.generation.number] = connection
            self._feed(e.Connected(connection.generation))
            return
        for number in [n for n, rank in comm.members.items() if rank is self]:
            comm.give_up(number, "called off")

    def broken(self, comm: Comm, why: str) -> None:
        """Connections of ``comm`` ended, or are ended by this rank."""
        number = comm.generation.number
        connection = self._open.get(number)
        if self._ended or connection is None or connection.comm is not comm or connection.rank in comm.over:
            return
        comm.give_up(connection.rank, why)
        self._feed(e.Over(number, why))
        self._interrupt(number, why)

    # ---- entry of a generation: state comes from the furthest --------------------------------------------------------
    def _enter(self, to: Connection) -> None:
        assert self.core is not None
        self._works = to
        if (why := to.comm.over.get(to.rank)) is not None:
            self._interrupt(to.generation.number, why)
            return
        live = ShardRef(self.step if self.has_state else FRESH, 1, 0, self.by)
        row = EntryRow(live, size=self._size, reached=self.step, told=self.core.welcome.step, layout=1)

        def table(rows: dict[int, Any]) -> None:
            if self._works is to:
                self._table(to, {n: rows[n] for n in sorted(rows)})

        to.comm.give("entry", to.rank, (row, self.state), table)

    def _table(self, to: Connection, rows: dict[int, Any]) -> None:
        entry = Entry.of([row for row, _ in rows.values()])
        source = entry.sources[0]
        if entry.cold and to.rank == 0:
            self.world.note_cold(to.generation)
        seconds = 0.02 + 0.5 * self.world.rng.random() if entry.receivers and not entry.cold else 0.0
        step, state = (max(rows[source][0].step, 0), rows[source][1]) if not entry.cold else (0, 0)

        def moved(_: dict[int, Any]) -> None:
            if self._works is not to:
                return
            if to.rank in entry.receivers or entry.cold:
                self.step, self.state, self.by = step, state, rows[source][0].live.by
            self.has_state = True
            self._entered(to)

        # All have what was sent once the last one has it; who gives cannot go on before.
        self.process.after(seconds, to.comm.give, "state", to.rank, None, moved)

    def _entered(self, to: Connection) -> None:
        self._size, self._sums = to.comm.size, 0
        self._feed(e.Entered(to.generation, self.step, complete=True))
        self.world.note_entered(self, to.generation)
        self._reported = float("-inf")
        self._boundary()

    # ---- a step ------------------------------------------------------------------------------------------------------
    def _compute(self) -> None:
        assert self.core is not None and self.core.force is not None
        works = self._works = self._open[self.core.force.number]
        if self.step >= self.world.total_steps:
            works.comm.give(("end", self._sums), works.rank, None, lambda _: self._finished(works))
            return
        self._at(Where.BODY)
        part = ORDER.slice(self.step, works.rank, works.comm.size)
        seconds = self.world.step_seconds * (0.9 + 0.2 * self.world.rng.random())
        self.process.after(seconds, self._give, works, part.indices)

    def _give(self, works: Connection, indices: tuple[int, ...]) -> None:
        if self._works is not works or self._ended:
            return
        assert self.core is not None
        self._at(Where.COLLECTIVE)
        connected = self.core.connected()
        part = (control.encode(connected), indices, self.step, self.state)
        works.comm.give(self._sums, works.rank, part, lambda parts: self._summed(works, parts, connected))

    def _unvouched(
        self, works: Connection, parts: dict[int, Any], connected: frozenset[int], until: float | None
    ) -> None:
        """Wait a while for the agent to vouch."""
        now = self.world.clock.now
        until = until or now + self.agent.core.settings.lease_ttl
        if now < until:
            self.process.after(0.1, self._summed, works, parts, connected, until)
        else:
            self.broken(works.comm, "the agent does not vouch")

    def _summed(
        self, works: Connection, parts: dict[int, Any], connected: frozenset[int], until: float | None = None
    ) -> None:
        """``until``: how long to wait for the agent's vouch; None: as long as the product does."""
        if self._works is not works or self._ended:
            return
        g = works.comm.generation
        if not self.agent.vouching.vouch.covers(g.number, g.size, self.world.clock.now):
            self._unvouched(works, parts, connected, until)
            return
        slots = [sum(column) for column in zip(*(vector for vector, *_ in parts.values()), strict=True)]
        samples = tuple(i for n in sorted(parts) for i in parts[n][1])
        self._sums += 1
        self.step += 1
        self._commits += 1
        self.state, self.by = digest(self.state, samples), g.number
        self._feed(e.Agreed(Summed(slots, connected).agreed(g.number)))
        self.world.note_commit(self, works.comm, parts)
        now = self.world.clock.now
        if works.rank == 0 and (now >= self._reported + REPORT or self.step >= self.world.total_steps):
            self._reported = now
            self._report(g)
        self._boundary()

    def _report(self, g: Generation) -> None:
        progress = Progress(
            generation=g.number, world_size=g.world_size, members=g.size, step=self.step,
            total_steps=self.world.total_steps, samples=ORDER.samples_before(self.step), loss=1.0, step_seconds=1.0,
        )  # fmt: skip
        self._say(Report(progress=progress))

    def _finished(self, works: Connection) -> None:
        if self._works is works and not self._ended:
            self._say(Finished(step=self.step))
            self._at(Where.OUTSIDE)
            self._ended = True
            self.process.after(0.2 + 2.0 * self.world.rng.random(), self._exit)
