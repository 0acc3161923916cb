"""A rank's link to its agent, and its connections to others: the shell of :mod:`elastrain.elastic.group.machine`.

Three kinds of threads feed the machine: the link's reader (messages), one short-lived thread for each proposal
(connecting), and the training thread at step boundaries. Effects are executed one after the other, in the order of the
machine's decisions, by the thread that comes first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import structlog
import torch

from elastrain import threads
from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.messages import AgentMessage, Diverged, Exit, Located, RankMessage, Welcome
from elastrain.api.records import Generation
from elastrain.elastic.comm.backend import Offer
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.comm.transport import described, first_line
from elastrain.elastic.commit.vouched import AgentVouch
from elastrain.elastic.group.connecting import Connector, close_in_background, is_own
from elastrain.elastic.group.machine import events as e
from elastrain.elastic.group.machine.core import Core
from elastrain.elastic.group.machine.states import State
from elastrain.elastic.state import transfer
from elastrain.link import AgentLink, AgentLost, MessageFailed

log = structlog.get_logger(__name__)

_ANSWER_SECONDS = 60.0
"""Bound of waiting for an answer of the agent, which reads no network for it."""
_REMIND_SECONDS = 10.0
"""Interval of the log lines of a rank that waits for a generation."""


class ExitRequested(Exception):
    """The agent has asked this rank to end; no further generation includes it."""

    def __init__(self, message: Exit) -> None:
        super().__init__(message.reason)
        self.finished = message.finished


class Withdrawn(Exception):
    """This rank can enter no generation until it is ready again, as a new member."""


class LoopOver(Exception):
    """The job has left the loop in which this rank waits: its script goes on to a later one."""


class NotConnected(RuntimeError):
    """No generation could be connected: the network between the workers does not work."""


class Session:
    """One rank's membership. The methods are for the training thread, :meth:`feed` for any."""

    def __init__(self, socket_path: str, local_rank: int) -> None:
        self._changed = threading.Condition()
        """Guards the machine, the connections and what follows; notified after every event and instruction."""
        self._communicators: dict[int, Communicator] = {}
        """The open ones, by the number of their generation."""
        self._failures: dict[int, BaseException] = {}
        """Why this rank could not connect, by the same."""
        self._instruction: e.Instruction | None = None
        self._lost: AgentLost | MessageFailed | None = None
        """Why the agent's messages have ended."""
        self._effects: deque[e.Effect] = deque()
        self._executing = threading.RLock()
        """Held while effects are executed."""
        self._timer: threading.Timer | None = None  # noqa: TID251
        self._due: float | None = None
        self._vouch = AgentVouch(socket_path)
        self._connector = Connector(lambda: self.welcome, self._needs, self._tried, self._failed_itself)
        self._link = AgentLink(socket_path, local_rank, self._on_message, stays=True)
        self.core = Core(self._link.welcome, local_rank)
        """Read by the training thread; changed by :meth:`feed` only."""
        self._link.start()

    # -- events and effects --------------------------------------------------------------------------------------------
    def feed(self, event: e.Event) -> None:
        """Let the machine react to ``event``. Returns after the effects, except for connecting and closing."""
        with self._changed:
            self._note_over()
            self._handle(event)
            self._changed.notify_all()
        with self._executing:
            while self._effects:
                self._execute(self._effects.popleft())

    def _tick(self) -> None:
        try:
            self.feed(e.Tick())
        except Exception as error:  # as an error of the thread that reads messages
            self._agent_gone(MessageFailed(b"(a deadline)", error))

    def _note_over(self) -> None:
        for number, communicator in self._communicators.items():
            if communicator.over is not None and number not in self.core.over:
                self._handle(e.Over(number, communicator.over))

    def _handle(self, event: e.Event) -> None:
        now = time.monotonic()
        self._effects.extend(self.core.handle(event, now))
        if self.core.deadline != self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due, self._timer = self.core.deadline, None
            if self._due is not None:
                self._timer = threads.start_timer(self._due - now, self._tick)

    def _execute(self, effect: e.Effect) -> None:
        match effect:
            case e.Send(message=message):
                try:
                    self._link.send(message)
                except AgentLost as gone:  # the training thread learns it at its next boundary
                    self._agent_gone(gone)
            case e.Connect(generation=g, rank=rank):
                self._connector.start(g, rank)
            case e.CallOff(number=number, why=why):
                if (communicator := self._communicators.get(number)) is not None:
                    communicator.call_off(why)
            case e.Abort(number=number, why=why):
                if (communicator := self._communicators.get(number)) is not None:
                    communicator.abort(why)
            case e.Close(number=number):
                with self._changed:
                    communicator = self._communicators.pop(number, None)
                if communicator is not None:
                    close_in_background(communicator)
            case _:
                with self._changed:
                    self._instruction = effect
                    self._changed.notify_all()

    # -- the training thread at its boundaries -------------------------------------------------------------------------
    def boundary(self, *, holds: bool, loop: LoopId | None = None) -> e.AtBoundary:
        """As of :class:`elastrain.elastic.group.machine.events.Boundary`: the instruction.

        Waits as long as the agent lives, since a job below its minimum has nothing else to do; a log line repeats it.
        Raises :class:`ExitRequested`, :class:`AgentLost`, :class:`MessageFailed`. After a bounded number of attempts to
        connect, it raises the error of the last one, or :class:`NotConnected`.
        """
        self.feed(e.Boundary(holds, loop))
        began = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._instruction is not None, _REMIND_SECONDS)
                instruction, self._instruction = self._instruction, None
            match instruction:
                case None:
                    waited = round(time.monotonic() - began)
                    log.info("waiting for a generation", newer_than=self.core.number, seconds=waited)
                case e.Leave():
                    self._raise_if_over()
                case e.Fail(number=number, attempts=attempts):
                    raise self._why_not_connected(number, attempts)
                case _:
                    return instruction

    @property
    def communicator(self) -> Communicator | None:
        """Of the generation in force; None while this rank is in none."""
        force = self.core.force
        return None if force is None else self._communicators.get(force.number)

    def communicator_of(self, number: int) -> Communicator:
        """The open connections of a generation, by its number."""
        return self._communicators[number]

    def entered(self, communicator: Communicator, step: int, *, complete: bool) -> None:
        """As of :class:`elastrain.elastic.group.machine.events.Entered`."""
        if self.core.entering is communicator.of:
            why, sums_by = communicator.choice.why, communicator.sums_by
            log.info(
                "generation entered", generation=communicator.generation, reason=communicator.of.reason,
                rank=communicator.rank, world_size=communicator.world_size, step=step, complete=complete,
                sums_by=sums_by, because=why if sums_by == "nccl" else f"not NCCL: {why}",
                within_groups_by=str(communicator.choice.inner),
            )  # fmt: skip
        self._connector.entered(communicator)
        self._failures.clear()
        self.feed(e.Entered(communicator.of, step, complete))

    def gave_up(self, communicator: Communicator, step: int, why: str) -> None:
        """As of :class:`elastrain.elastic.group.machine.events.GaveUp`."""
        if communicator.unsent is not None:
            log.error("this rank cannot send its state, and keeps it", exc_info=communicator.unsent)
        self.feed(e.GaveUp(communicator.generation, step, why, unsent=communicator.unsent is not None))

    def vouched(self, communicator: Communicator) -> bool:
        """Whether the step whose sums have arrived may be committed: the generation is not broken, and this rank's
        agent vouches for it. Waits for that up to one TTL of the lease; the generation is broken after it."""
        return self._vouch.wait(communicator, self.welcome.lease_ttl)

    def connected(self) -> frozenset[int]:
        """Numbers of the proposals that this rank could switch to now."""
        with self._changed:
            self._note_over()
            return self.core.connected()

    # -- to the agent ------------------------------------------------------------------------------------------------
    def send(self, message: RankMessage) -> None:
        """Send what the machine does not depend on. Raises :class:`AgentLost`."""
        self._link.send(message)

    def fails(self, error: BaseException) -> bool:
        """The script ends by ``error``. Returns whether it is a failure of this rank. Raises :class:`AgentLost`."""
        if isinstance(error, RanksDiverged):
            self.diverged(str(error))
        return not isinstance(error, SystemExit | GeneratorExit | RanksDiverged)

    def diverged(self, why: str) -> RanksDiverged:
        """Ranks do different things: the agent ends the job. Returns the error to raise. Raises :class:`AgentLost`."""
        self._link.send(Diverged(why=why))
        return RanksDiverged(why)

    def locate(self) -> Located:
        """The position of the job, as the agent knows it now.

        Raises :class:`ExitRequested`, :class:`AgentLost`, and ``TimeoutError`` after :data:`_ANSWER_SECONDS`.
        """
        self.feed(e.Locates())
        self._await(lambda: self.core.located is not None, "sent the job's position")
        assert self.core.located is not None
        return self.core.located

    def rejoin(self) -> bool:
        """Wait until the agent has registered this rank's worker as a new member, which is not ready yet.

        Returns whether this rank has asked for it. Raises as of :meth:`locate`.
        """
        self._await(lambda: self.core.state is State.REPLACED, "registered this worker anew")
        withdrew = self.core.withdrew
        self.feed(e.Renewed())
        return withdrew

    def hears_of_a_generation(self, *, after: int, within: float) -> bool:
        """Wait up to ``within`` seconds for a newer proposal than ``after``, or until this rank is withdrawn.

        Returns whether it has come to that. Raises as of :meth:`pause`.
        """

        def comes() -> bool:
            return self.withdrawn or self.core.proposals.number > after

        with self._changed:
            self._changed.wait_for(lambda: comes() or self._lost or self.core.exit, within)
            self._raise_if_over()
            return comes()

    def pause(self, seconds: float) -> None:
        """Wait, or until the script has to run again. Raises :class:`ExitRequested` or :class:`AgentLost`."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost or self.core.exit or self.core.repeats, seconds)
            self._raise_if_over()

    def use(self, offer: Offer, device: torch.device) -> None:
        """Set the transport that this rank can use for tensors on ``device``, before a generation may include it."""
        transfer.reserve(device)
        self._connector.use(offer, device)

    def ready(self, step: int, loop: LoopId = NO_LOOP) -> None:
        """A generation may include this rank."""
        self.feed(e.Ready(self._connector.listener().port, step, loop))

    def part(self) -> None:
        """Close every connection to peers; the link to the agent stays until :meth:`close`."""
        self.feed(e.Closed())
        with self._changed:
            communicators = [*self._communicators.values()]
            self._communicators.clear()
        for communicator in communicators:
            communicator.close()
        self._connector.close()

    def close(self) -> None:
        """Close the link to the agent and every connection. The last call."""
        self.part()
        self._link.close()

    # -- what is known -------------------------------------------------------------------------------------------------
    @property
    def welcome(self) -> Welcome:
        """The newest one: who this rank is."""
        return self.core.welcome

    @property
    def shard(self) -> int:
        """The part of the model that this rank holds: by its worker's place in a group, and its own on the worker."""
        shards = self.welcome.settings.shards
        return 0 if shards == "all" else (self.welcome.first_shard + self.core.local_rank) % shards

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self.core.state is State.CLOSED

    @property
    def withdrawn(self) -> bool:
        """Whether :meth:`rejoin` has to follow before this rank can enter a generation."""
        return not self.core.has_member

    @property
    def outside(self) -> bool:
        """As of :attr:`Core.outside`."""
        with self._changed:
            return self.core.outside

    def proposal(self, number: int) -> Generation | None:
        """The generation that was proposed as ``number``; None if it is unknown or long superseded."""
        with self._changed:
            return self.core.proposals.known.get(number)

    def proposed_at(self, number: int) -> float | None:
        """Monotonic time at which the generation ``number`` was proposed; None: not to the member that this is now."""
        with self._changed:
            return self.core.proposals.proposed_at(number)

    def newest_place(self) -> tuple[int, int] | None:
        """Ranks of the newest known generation, and this rank in it; None if it does not include this rank."""
        with self._changed:
            newest = self.core.proposals.newest
            rank = None if newest is None else self.core.rank_in(newest)
            return None if newest is None or rank is None else (newest.world_size, rank)

    def expected_world_size(self) -> int:
        """Ranks of the newest known generation; 0 before any."""
        with self._changed:
            newest = self.core.proposals.newest
            return newest.world_size if newest else 0

    # -- threads -----------------------------------------------------------------------------------------------------
    def _on_message(self, message: AgentMessage | MessageFailed | None) -> None:
        if message is None or isinstance(message, MessageFailed):
            self._agent_gone(message or AgentLost("the agent is gone"))
        else:
            self.feed(message)

    def _agent_gone(self, why: AgentLost | MessageFailed) -> None:
        with self._changed:
            self._lost = self._lost or why
        self.feed(e.AgentGone(first_line(why)))

    def _tried(self, g: Generation, result: Communicator | BaseException) -> None:
        if isinstance(result, Communicator):
            with self._changed:
                self._communicators[g.number] = result
            self.feed(e.Connected(g))
            return
        with self._changed:
            self._failures[g.number] = result
        self.feed(e.NotConnected(g, described(result), is_own(result)))

    def _failed_itself(self, number: int, error: BaseException) -> None:
        """This rank has failed in generation ``number``, and its process ends by that."""
        log.error("this rank has failed itself; its peers go on without it", generation=number, error=described(error))
        self.feed(e.FailedItself(number, described(error)))

    def _needs(self, g: Generation) -> bool:
        with self._changed:
            return self.core.needs(g)

    # -- waits ---------------------------------------------------------------------------------------------------------
    def _await(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for the agent. Raises ``TimeoutError`` after :data:`_ANSWER_SECONDS`."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition() or self._lost or self.core.exit, _ANSWER_SECONDS):
                raise TimeoutError(f"the agent has not {what} within {_ANSWER_SECONDS:g} s")
            self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self.core.exit is not None:
            raise ExitRequested(self.core.exit)

    def _why_not_connected(self, number: int, attempts: int) -> BaseException:
        last = self._failures[number]
        if not attempts:
            return last
        error = NotConnected(f"could not connect to {attempts} generations in a row; the last error: {described(last)}")
        error.__cause__ = last
        return error
