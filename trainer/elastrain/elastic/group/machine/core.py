"""A rank's place in its job: events in, effects out. Pure; :mod:`elastrain.elastic.group.shell` feeds it and executes
the effects in their order. The simulation (``tests/sim``) runs the same machine.

It owns which generations were proposed, to which of them this rank is connected, which one it trains in, enters, has
agreed to enter or has given up, and under which member id. It does not own the state of the model, the votes for steps
(:mod:`elastrain.elastic.commit`) and the position of the script among its loops
(:mod:`elastrain.elastic.group.position`).

The training thread meets the machine at step boundaries: it says :class:`Boundary` and waits for an instruction, which
is an effect as all others. :mod:`elastrain.elastic.group.machine.states` has the states and their transitions.
"""

from __future__ import annotations

from collections.abc import Iterator

from elastrain.api import messages as m
from elastrain.api.loops import LoopId
from elastrain.api.records import Generation
from elastrain.elastic.group.machine import events as e
from elastrain.elastic.group.machine.proposals import Proposals
from elastrain.elastic.group.machine.states import TRANSITIONS, Move, State

CATCH_UP_SECONDS = 3.0
"""Most seconds for which other ranks wait for a script that catches up; twice as many after each failure, so that it
succeeds in the end, however long the code between its loops takes."""
OWN_ATTEMPTS = 2
"""Generations in a row that a rank fails to connect to by itself. Then it ends with its own error."""
VAIN_ATTEMPTS = 8
"""Generations in a row that a rank without state cannot connect to because of its peers or the network; about a minute
with the leader's pauses. A rank that holds state waits for its peers without end instead."""


_NO_MEMBER = frozenset({State.WITHDRAWN, State.REPLACED})


class Core:
    """One rank. Call :meth:`handle` with each event, execute the effects in order."""

    def __init__(self, welcome: m.Welcome, local_rank: int) -> None:
        self.state = State.APART
        self.welcome, self.local_rank = welcome, local_rank
        self.proposals = Proposals()
        """Those to the present member."""
        self.force: Generation | None = None
        """The generation in force; None while this rank is in none."""
        self.entering: Generation | None = None
        """The one that it enters."""
        self.last: Generation | None = None
        """The one in force, or the last one."""
        self.agreed: int | None = None
        """The generation that the ranks enter at the next boundary. It outlives the one in force: others enter it."""
        self.number = 0
        """Of the newest generation that this rank has adopted, or given up."""
        self.adopted = 0
        """Of the newest that it has adopted as the present member; 0: none."""
        self.over: dict[int, str] = {}
        """Open connections of no further use, and why."""
        self.boundary: e.Boundary | None = None
        """The training thread waits for an instruction."""
        self.deadline: float | None = None
        """When :class:`Tick` is due; None: never. Until then the script has to catch up."""
        self.located: m.Located | None = None
        """The agent's newest answer."""
        self.exit: m.Exit | None = None
        self.repeats = ""
        """Why this rank's script has to run again after its end; empty: it has not."""
        self.gone = ""
        """Why the agent's messages have ended; empty: they have not."""
        self.withdrew = False
        """This rank has given up its member id, not its agent because another rank of its worker was killed."""
        self._own_failures = self._vain = 0
        """Generations in a row that this rank could not connect to by itself, and because of others."""
        self._has_trained = False
        self._catch_up_seconds = CATCH_UP_SECONDS

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        """Update the state by ``event``; returns the effects to execute. ``now``: monotonic seconds."""
        return [*self._note(event, now), *self._instruct()]

    # -- for the shell -------------------------------------------------------------------------------------------------
    def rank_in(self, generation: Generation) -> int | None:
        """This rank's number in ``generation``; None: it does not include this rank."""
        member = generation.member(self.welcome.member)
        return None if member is None else member.rank_offset + self.local_rank

    def connected(self) -> frozenset[int]:
        """Numbers of the proposals that this rank could switch to now."""
        return self.proposals.available(self.over)

    def needs(self, generation: Generation) -> bool:
        """Whether a connection to ``generation`` is of use."""
        return self.state is not State.CLOSED and not self.gone and self.proposals.needed(generation)

    @property
    def has_member(self) -> bool:
        """Whether this rank is of the member that its training thread knows."""
        return self.state not in _NO_MEMBER

    @property
    def outside(self) -> bool:
        """Whether this rank has been in no generation since its worker is this member, or stands by outside of one."""
        g = self.proposals.known.get(self.adopted)
        return not self.adopted or (g is not None and g.size > 0 and self.rank_in(g) is None)

    # -- events --------------------------------------------------------------------------------------------------------
    def _note(self, event: e.Event, now: float) -> Iterator[e.Effect]:
        if isinstance(event, e.OfConnections):
            yield from self._note_connections(event)
        elif isinstance(event, e.OfScript):
            yield from self._note_script(event, now)
        elif isinstance(event, e.OfGenerations):
            yield from self._note_generations(event)
        else:
            yield from self._note_message(event, now)

    def _note_message(self, message: m.AgentMessage, now: float) -> Iterator[e.Effect]:
        match message:
            case m.Proposed() | m.Abort() if self.state in (State.WITHDRAWN, State.CLOSED):
                pass  # to the member that this rank was
            case m.Proposed(generation=g):
                yield from self._proposed(g, now)
            case m.Abort(generation=number, reason=why):
                self.proposals.aborted[number] = why
                if number in self.proposals.connected or (self._current and self._current.number == number):
                    yield from self._call_off([number], why)
            case m.Welcome():
                yield from self._replaced(message)
            case m.Located():
                self.located = message
            case m.Repeat(why=why):
                self.repeats = why
            case m.Exit(reason=why):
                self.exit = message
                if self._current is None or self._current.number != self.adopted:
                    yield from self._call_off_all(f"exit: {why}")  # its peers may not come

    def _note_connections(self, event: e.OfConnections) -> Iterator[e.Effect]:
        match event:
            case e.AgentGone(why=why):
                self.gone = why
                yield from self._call_off_all(why)
            case e.Connected(generation=g):
                yield from self._connected(g)
            case e.NotConnected():
                yield from self._not_connected(event)
            case e.Over(number=number, why=why):
                if number in self._open:
                    self.over.setdefault(number, why)
            case e.FailedItself(number=number, error=why):
                yield e.Send(m.Broken(generation=number, step=0, error=why, mine=True, leaves=True))

    def _note_script(self, event: e.OfScript, now: float) -> Iterator[e.Effect]:
        match event:
            case e.Ready(store_port=port, step=step, loop=loop):
                self.deadline = None
                self._move(Move.READY)
                yield e.Send(m.Ready(store_port=port, step=step, loop=loop))
            case e.Locates():
                self.located = None
                yield e.Send(m.Locate())
            case e.Boundary():
                self.boundary = event
            case e.CatchesUp():
                self.deadline = now + self._catch_up_seconds
            case e.Tick() if self.deadline is not None and now >= self.deadline:
                why = f"the code between the script's loops takes longer than {self._catch_up_seconds:g} s"
                self._catch_up_seconds *= 2
                yield from self._withdraw(why)
            case e.Withdraws(why=why):
                yield from self._withdraw(why)
            case e.Renewed():
                if self.entering is not None:
                    yield from self._close([self.entering.number])
                self.entering, self.withdrew = None, False
                self._move(Move.RENEWED)
            case e.Answered():
                self.repeats = ""
            case e.Closed():
                self.proposals = Proposals()
                self._move(Move.CLOSED)

    def _note_generations(self, event: e.OfGenerations) -> Iterator[e.Effect]:
        match event:
            case e.Agreed(number=number):
                self.agreed = number
                self._move(Move.NOT_AGREED if number is None else Move.AGREED)
            case e.Entered(generation=g, step=step, complete=complete):
                yield from self._entered(g, step, complete=complete)
            case e.Stopped(number=number, step=step):
                self.number = number
                yield from self._leave()
                yield from self._adopt(number, step, complete=True)
            case e.GaveUp(number=number, step=step, error=why, unsent=mine):
                yield e.Send(m.Broken(generation=number, step=step, error=why, mine=mine, unsent=mine))
                self.number = max(self.number, number)
                yield from self._leave()

    def _proposed(self, g: Generation, now: float) -> Iterator[e.Effect]:
        rank = self.rank_in(g)
        if self.proposals.learn(g, now, has_place=rank is not None) and rank is not None:
            yield e.Connect(g, rank)

    def _connected(self, g: Generation) -> Iterator[e.Effect]:
        if self.proposals.known.get(g.number) is not g:
            yield e.Abort(g.number, "superseded")  # or forgotten
            yield e.Close(g.number)
            return
        self.proposals.connected.add(g.number)
        if (why := self.proposals.aborted.get(g.number)) is not None:
            yield from self._call_off([g.number], why)

    def _not_connected(self, event: e.NotConnected) -> Iterator[e.Effect]:
        number = event.generation.number
        self.proposals.failed[number] = event.error, event.own
        current = self._current
        if event.own and current is not None and current.number not in self.over:  # else it is reported at a boundary
            yield e.Send(m.Broken(generation=number, step=0, error=event.error, mine=True))

    def _entered(self, g: Generation, step: int, *, complete: bool) -> Iterator[e.Effect]:
        if self.entering is g:
            old, self.force, self.entering, self.last = self.force, g, None, g
            self.number = g.number
            if old is not None:
                yield from self._close([old.number])
        self._move(Move.ENTERED if complete else Move.ENTERED_IN_PART)
        yield from self._adopt(g.number, step, complete=complete)
        if self.has_member:
            self._own_failures = self._vain = 0
            self._has_trained |= complete

    def _withdraw(self, why: str) -> Iterator[e.Effect]:
        """Leave the proposals that include this rank; no rank waits for it any longer."""
        self.deadline = None
        if self.state in _NO_MEMBER:
            return
        for g in (self.force, self.entering):
            if g is not None:  # no step of it is under way
                self.over.setdefault(g.number, why)
                yield e.Abort(g.number, why)
        yield from self._forget_proposals(why)
        self.withdrew = True
        self._move(Move.WITHDRAWN)
        yield e.Send(m.Misplaced(why=why, ahead=False, member=self.welcome.member))

    def _replaced(self, welcome: m.Welcome) -> Iterator[e.Effect]:
        why = "this worker is registered anew"
        if self._current is not None:
            yield from self._call_off([self._current.number], why)  # a step may be under way
        yield from self._forget_proposals(why)
        self.welcome, self.deadline = welcome, None
        self._move(Move.REPLACED)

    # -- instructions --------------------------------------------------------------------------------------------------
    def _instruct(self) -> Iterator[e.Effect]:
        """Tell the training thread what to do, if it waits for that and it is known."""
        if self.boundary is None:
            return
        force = self.force
        if force is not None and (why := self.over.get(force.number)) is not None:
            yield from self._tell(e.GiveUp(force.number, why))
        elif self.entering is not None and self.state is State.ENTERS:
            yield from self._tell(e.Enter(self.entering))  # the script has caught up
        elif force is not None and self.agreed is None:
            yield from self._close_superseded()
            yield from self._tell(e.Train())
        elif self.agreed is not None and (agreed := self._take_agreed()) is not None:
            yield from self._change_to(agreed, agreed=True)
        elif force is not None:
            yield from self._tell(e.GiveUp(force.number, "the generation that the ranks agreed on is superseded"))
        else:
            yield from self._wait(self.boundary)

    def _wait(self, boundary: e.Boundary) -> Iterator[e.Effect]:
        """This rank is in no generation."""
        if self.gone or self.exit is not None:
            yield from self._tell(e.Leave())
            return
        if not self.has_member:
            yield from self._tell(e.StandBack())
            return
        g = self.proposals.newest
        if g is not None and g.number > self.number:
            if self.rank_in(g) is None or g.number in self.proposals.connected:
                yield from self._change_to(g)
            elif g.number in self.proposals.failed:
                yield from self._ask_for_another(g.number)
        if self.boundary is not None and (loop := self._later_loop(boundary)) is not None:
            yield from self._tell(e.GoOn(loop))

    def _later_loop(self, boundary: e.Boundary) -> LoopId | None:
        """The loop that the job is in, if the script can go on to it."""
        if boundary.loop is None or self.located is None or (boundary.holds and not self.outside):
            return None
        return self.located.loop if self.located.is_later(boundary.loop) else None

    def _change_to(self, g: Generation, *, agreed: bool = False) -> Iterator[e.Effect]:
        if self.rank_in(g) is None:
            yield from self._tell(e.StopFor(g, agreed))
            return
        self.proposals.connected.discard(g.number)
        self.entering = g
        self._move(Move.ENTER)
        yield from self._close_superseded()  # a joiner may wait there for this rank, and this rank here for it
        yield from self._tell(e.Enter(g, agreed))

    def _ask_for_another(self, number: int) -> Iterator[e.Effect]:
        """This rank could not connect to the newest generation: it waits for another one, or ends."""
        error, own = self.proposals.failed[number]
        self.number = number
        self._own_failures, self._vain = self._own_failures + own, self._vain + (not own)
        fails = self._own_failures >= OWN_ATTEMPTS if own else not self._has_trained and self._vain >= VAIN_ATTEMPTS
        yield e.Send(m.Broken(generation=number, step=0, error=error, mine=own, leaves=fails))
        if fails:
            yield from self._tell(e.Fail(number, 0 if own else self._vain))

    def _tell(self, instruction: e.Instruction) -> Iterator[e.Effect]:
        self.boundary = None
        yield instruction

    def _take_agreed(self) -> Generation | None:
        number, self.agreed = self.agreed, None
        return None if number is None else self.proposals.known.get(number)

    # -- connections ---------------------------------------------------------------------------------------------------
    @property
    def _current(self) -> Generation | None:
        """The generation that this rank enters, or else the one in force."""
        return self.entering or self.force

    @property
    def _open(self) -> set[int]:
        mine = (self.force, self.entering)
        return self.proposals.connected | {g.number for g in mine if g is not None}

    def _leave(self) -> Iterator[e.Effect]:
        """Leave the generation in force, and the one that was to follow it: its other ranks may have left the first."""
        yield from self._close([g.number for g in (self.entering, self.force) if g is not None])
        self.force = self.entering = None
        self._move(Move.LEFT)

    def _adopt(self, number: int, step: int, *, complete: bool) -> Iterator[e.Effect]:
        """Not if the worker is another member meanwhile: its agent would take the message for one of the new member."""
        if self.has_member:
            self.adopted = number
            yield e.Send(m.Adopted(generation=number, step=step, complete=complete))

    def _call_off_all(self, why: str) -> Iterator[e.Effect]:
        current = [] if self._current is None else [self._current.number]
        yield from self._call_off([*current, *sorted(self.proposals.connected)], why)

    def _call_off(self, numbers: list[int], why: str) -> Iterator[e.Effect]:
        for number in numbers:
            self.over.setdefault(number, why)
            yield e.CallOff(number, why)

    def _close_superseded(self) -> Iterator[e.Effect]:
        for number in self.proposals.take_superseded():
            yield e.Abort(number, "superseded")
            yield from self._close([number])

    def _forget_proposals(self, why: str) -> Iterator[e.Effect]:
        """No proposal includes the member that this rank will be."""
        for number in sorted(self.proposals.connected):
            yield e.Abort(number, why)
            yield from self._close([number])
        self.proposals, self.adopted = Proposals(), 0

    def _close(self, numbers: list[int]) -> Iterator[e.Effect]:
        for number in numbers:
            self.over.pop(number, None)
            yield e.Close(number)

    def _move(self, move: Move) -> None:
        self.state = TRANSITIONS[self.state][move]
