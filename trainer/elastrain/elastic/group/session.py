"""The agent's messages, and the connections to proposed generations that follow from them.

Two kinds of threads write here: the link's reader (messages), and one short-lived thread per proposal (connecting). The
training thread reads between steps. While it is in no healthy generation, it waits here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import structlog
import torch

from elastrain.api.messages import (
    Abort,
    Adopted,
    AgentMessage,
    Broken,
    Diverged,
    Exit,
    Locate,
    Located,
    Misplaced,
    Proposed,
    RankMessage,
    Repeat,
    Welcome,
)
from elastrain.api.records import Generation
from elastrain.elastic.comm.backend import Offer
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.comm.meeting import MeetingPoint
from elastrain.elastic.comm.transport import described, first_line
from elastrain.elastic.commit.vouched import AgentVouch
from elastrain.elastic.group.connecting import Connector, close_in_background
from elastrain.elastic.group.proposals import Proposals
from elastrain.elastic.state import transfer
from elastrain.link import AgentLink, AgentLost, MessageFailed

log = structlog.get_logger(__name__)

_ANSWER_SECONDS = 60.0
"""Bound of waiting for an answer of the agent, which reads no network for it."""
_REMIND_SECONDS = 10.0
"""Interval of the log lines of a rank that waits for a generation."""


class ExitRequested(Exception):
    """The agent has told this rank to end; no further generation includes it."""

    def __init__(self, message: Exit) -> None:
        super().__init__(message.reason)
        self.finished = message.finished


class Withdrawn(Exception):
    """This rank can enter no generation until it is ready again, as a new member."""


class Session:
    """The rank's side of its membership. All public methods are for the training thread."""

    def __init__(self, socket_path: str, local_rank: int) -> None:
        self._changed = threading.Condition()
        self._proposals = Proposals()
        self._connector = Connector(lambda: self.welcome, self._called_off, self._connected, self._failed_itself)
        self._adopted = 0
        self._current: Communicator | None = None
        self._exit: Exit | None = None
        self.repeats = ""
        """Why this rank's script has to run again after its end; empty: it has not."""
        self._located: Located | None = None
        self._lost: AgentLost | MessageFailed | None = None
        """Why the agent's messages have ended."""
        self._withdrawn = self._renewed = self._asked = False
        """Whether this rank has to be ready again as a new member; whether its agent has named that; whether this rank
        has asked for it, and not its agent because another rank of its worker was killed."""
        self._closed = False
        self._local_rank = local_rank
        self._meeting_point: MeetingPoint | None = None
        self._vouch = AgentVouch(socket_path)
        self._link = AgentLink(socket_path, local_rank, self._on_message, stays=True)
        self.welcome = self._link.welcome
        self._link.start()

    @property
    def shard(self) -> int:
        """The part of the model that this rank holds: by its worker's place in a group, and its own on the worker."""
        shards = self.welcome.settings.shards
        return 0 if shards == "all" else (self.welcome.first_shard + self._local_rank) % shards

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    # -- to the agent ------------------------------------------------------------------------------------------------
    def send(self, message: RankMessage) -> None:
        """Raises :class:`AgentLost`."""
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
        with self._changed:
            self._located = None
        self._link.send(Locate())
        self._await(lambda: self._located is not None, "told the job's position")
        assert self._located is not None
        return self._located

    @property
    def withdrawn(self) -> bool:
        """Whether :meth:`rejoin` has to follow before this rank can enter a generation."""
        return self._withdrawn

    def withdraw(self, why: str) -> None:
        """Leave the proposals that include this rank; no rank waits for it any longer. Idempotent, any thread.

        Raises :class:`AgentLost`.
        """
        with self._changed:
            if self._withdrawn or self._closed:
                return
            self._withdrawn, self._asked, member = True, True, self.welcome.member
            if self._current is not None:
                self._current.abort(why)  # no step of it is under way
            self._forget_proposals(why)
        self._link.send(Misplaced(why=why, ahead=False, member=member))

    @property
    def outside(self) -> bool:
        """Whether this rank has been in no generation since its worker is this member, or stands by outside of one."""
        with self._changed:
            g = self._proposals.known.get(self._adopted)
            return not self._adopted or (g is not None and g.size > 0 and self._rank_in(g) is None)

    def rejoin(self) -> bool:
        """Wait until the agent has registered this rank's worker as a new member, which is not ready yet.

        Returns whether this rank has asked for it. Raises as of :meth:`locate`.
        """
        self._await(lambda: self._renewed, "registered this worker anew")
        with self._changed:
            asked, self._withdrawn, self._renewed, self._asked = self._asked, False, False, False
        return asked

    def hears_of_a_generation(self, *, after: int, within: float) -> bool:
        """Wait up to ``within`` seconds for a newer proposal than ``after``, or until this rank is withdrawn.

        Returns whether it has come to that. Raises as of :meth:`pause`.
        """

        def comes() -> bool:
            return self._withdrawn or self._proposals.number > after

        with self._changed:
            self._changed.wait_for(lambda: comes() or self._lost or self._exit, within)
            self._raise_if_over()
            return comes()

    def pause(self, seconds: float) -> None:
        """Wait, until :attr:`repeats` at the latest. Raises :class:`ExitRequested` or :class:`AgentLost`."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost or self._exit or self.repeats, seconds)
            self._raise_if_over()

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for the agent. Raises ``TimeoutError`` after :data:`_ANSWER_SECONDS`."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition() or self._lost or self._exit, _ANSWER_SECONDS):
                raise TimeoutError(f"the agent has not {what} within {_ANSWER_SECONDS:g} s")
            self._raise_if_over()

    def adopt(self, number: int, step: int, *, complete: bool = True) -> None:
        """Tell the agent that this rank now trains in generation ``number``, or has stopped for it; ``complete``: with
        all of its state. Does nothing if its worker is another member meanwhile, for which the generation is over."""
        with self._changed:
            if self._withdrawn:
                return
            self._adopted = number
            if self._current is not None and self._current.generation == number:
                self._connector.succeeded(self._current, complete=complete)
        self._link.send(Adopted(generation=number, step=step, complete=complete))

    def use(self, offer: Offer, device: torch.device) -> None:
        """Set the transport that this rank can use for tensors on ``device``, before a generation may include it."""
        transfer.reserve(device)
        self._connector.use(offer, device)

    def serve_store(self) -> int:
        """Serve this member's meeting point, and return its port. Only for local rank 0; other ranks return 0."""
        if self._local_rank != 0:
            return 0
        self._meeting_point = self._meeting_point or MeetingPoint(self.welcome.address)
        return self._meeting_point.port

    def part(self) -> None:
        """Close every connection to peers; the link to the agent stays until :meth:`close`."""
        with self._changed:
            self._closed = True
            communicators = [*self._proposals.connected.values(), *([self._current] if self._current else [])]
            self._proposals = Proposals()
        for communicator in communicators:
            communicator.close()
        if self._meeting_point is not None:
            self._meeting_point.close()

    def close(self) -> None:
        """Close the link to the agent and every connection. The last call."""
        self.part()
        self._link.close()

    # -- between steps -----------------------------------------------------------------------------------------------
    def connected(self) -> frozenset[int]:
        """Numbers of the proposals that this rank could switch to now."""
        with self._changed:
            return self._proposals.available()

    def proposal(self, number: int) -> Generation | None:
        """The generation that was proposed as ``number``; None if it is unknown or long superseded."""
        with self._changed:
            return self._proposals.known.get(number)

    def newest_place(self) -> tuple[int, int] | None:
        """Ranks of the newest known generation, and this rank in it; None if it does not include this rank."""
        with self._changed:
            newest = self._proposals.newest
            rank = None if newest is None else self._rank_in(newest)
            return None if newest is None or rank is None else (newest.world_size, rank)

    def expected_world_size(self) -> int:
        """Ranks of the newest known generation; 0 before any."""
        with self._changed:
            return self._proposals.newest.world_size if self._proposals.newest else 0

    def heard_at(self, number: int) -> float | None:
        """Monotonic time at which the generation ``number`` was proposed; None: not to the member that this is now."""
        with self._changed:
            return self._proposals.heard_at(number)

    def take(self, number: int) -> tuple[Generation, Communicator | None]:
        """The generation that the ranks have agreed to switch to, with its communicator.

        The communicator is None if the generation does not include this rank. Raises :class:`Withdrawn` if this rank
        is of another member since they have agreed.
        """
        with self._changed:
            if self._withdrawn:
                raise Withdrawn
            self._current = self._proposals.connected.pop(number, None)
            return self._proposals.known[number], self._current

    def vouched(self, communicator: Communicator) -> bool:
        """Whether the step whose sums have arrived may be committed: the generation is not broken, and this rank's
        agent vouches for it. Waits for that up to one TTL of the lease; the generation is broken after it."""
        return self._vouch.wait(communicator, self.welcome.lease_ttl)

    def discard_superseded(self) -> None:
        """Close the connections to proposals that were replaced by a newer one before the ranks agreed on them."""
        with self._changed:
            old = self._proposals.take_superseded()
        for communicator in old:
            communicator.abort("superseded")
            close_in_background(communicator)

    def wait_for_generation(
        self, after: int, loop_end: int | None = None
    ) -> tuple[Generation, Communicator | None] | Located:
        """Wait for a generation numbered above ``after``: the newest one, with its communicator.

        The communicator is None if the generation does not include this rank. ``loop_end``: of the loop in which a rank
        without state waits; returns the job's position instead if the job is in a later one. Waits as long as the agent
        lives, since a job below its minimum has nothing else to do; a log line repeats it. Attempts to connect are
        bounded (:mod:`elastrain.elastic.group.attempts`): raises the error of the last one, or
        ``NotConnected``. Also raises :class:`ExitRequested`, :class:`AgentLost`, :class:`MessageFailed`, and
        :class:`Withdrawn`.
        """
        self._current = None
        began = reminded = time.monotonic()
        while True:
            failed = None
            with self._changed:
                self._raise_if_over()
                if self._withdrawn:
                    raise Withdrawn
                g = self._proposals.newest
                if g is not None and g.number > after:
                    if self._rank_in(g) is None:
                        return g, None
                    if g.number in self._proposals.connected:
                        self._current = self._proposals.connected.pop(g.number)
                        return g, self._current
                    failed = self._proposals.failed.get(g.number)
                if loop_end is not None and self._located is not None and self._located.is_later(loop_end):
                    return self._located
                if failed is None:
                    self._changed.wait(1.0)
            if failed is not None and g is not None:
                # It could not be formed: ask for another generation, and wait for that one.
                attempts = self._connector.attempts
                end, mine = attempts.failed(failed), attempts.is_own(failed)
                self.send(
                    Broken(generation=g.number, step=0, error=described(failed), mine=mine, leaves=end is not None)
                )
                if end is not None:
                    raise end
                after = g.number
            now = time.monotonic()
            if now - reminded >= _REMIND_SECONDS:
                reminded = now
                log.info("waiting for a generation", newer_than=after, seconds=round(now - began))

    # -- threads -----------------------------------------------------------------------------------------------------
    def _on_message(self, message: AgentMessage | MessageFailed | None) -> None:
        with self._changed:
            match message:
                case None | MessageFailed():
                    self._lost = message or AgentLost("the agent is gone")
                    self._call_off_all(first_line(self._lost))
                case Welcome():
                    self._renew(message)
                case Proposed() | Abort() if self._withdrawn and not self._renewed:
                    pass  # to the member that this rank was
                case Proposed(generation=g):
                    rank = self._rank_in(g)
                    if self._meeting_point is not None and g.first is not None and g.first.id == self.welcome.member:
                        self._meeting_point.expect(g)
                    if self._proposals.learn(g, has_place=rank is not None) and rank is not None:
                        self._connector.start(g, rank)
                case Abort(generation=number, reason=reason):
                    self._proposals.abort(number, reason)
                    if self._current is not None and self._current.generation == number:
                        self._current.call_off(reason)
                case Located():
                    self._located = message
                case Repeat():
                    self.repeats = message.why
                case Exit(reason=reason):
                    self._exit = message
                    # A joiner may already be waiting in a generation for peers that will not come.
                    if self._current is None or self._current.generation != self._adopted:
                        self._call_off_all(f"exit: {reason}")
            self._changed.notify_all()

    def _connected(self, g: Generation, result: Communicator | BaseException) -> bool:
        with self._changed:
            if isinstance(result, Communicator):
                kept = not self._closed and self._proposals.keep(g, result)
                self._changed.notify_all()
                return kept
            self._proposals.failed[g.number] = result
            trains = self._current is not None and self._current.over is None
            self._changed.notify_all()
        if trains and self._connector.attempts.is_own(result):  # else the training thread reports it
            self._say(Broken(generation=g.number, step=0, error=described(result), mine=True))
        return False

    def _failed_itself(self, number: int, error: BaseException) -> None:
        """This rank has failed in generation ``number``, and its process ends by that."""
        log.error("this rank has failed itself; its peers go on without it", generation=number, error=described(error))
        self._say(Broken(generation=number, step=0, error=described(error), mine=True, leaves=True))

    def _say(self, message: RankMessage) -> None:
        """Send in any thread: the training thread learns by itself if the agent is gone."""
        with contextlib.suppress(AgentLost):
            self._link.send(message)

    def _called_off(self, g: Generation) -> bool:
        """Whether a connection to this proposal is no longer needed."""
        with self._changed:
            return self._closed or self._lost is not None or not self._proposals.needed(g)

    # -- under the lock ----------------------------------------------------------------------------------------------
    def _renew(self, welcome: Welcome) -> None:
        """This rank's worker is another member."""
        if self._current is not None:
            self._current.call_off("this worker is registered anew")  # a step may be under way
        self._forget_proposals("this worker is registered anew")
        self.welcome, self._withdrawn, self._renewed = welcome, True, True

    def _rank_in(self, g: Generation) -> int | None:
        member = g.member(self.welcome.member)
        return None if member is None else member.rank_offset + self._local_rank

    def _forget_proposals(self, cause: str) -> None:
        """No proposal includes the member that this rank will be."""
        for communicator in self._proposals.connected.values():
            communicator.abort(cause)
            close_in_background(communicator)
        self._proposals, self._adopted = Proposals(), 0
        self._changed.notify_all()

    def _call_off_all(self, cause: str) -> None:
        for c in (self._current, *self._proposals.connected.values()):
            if c is not None:
                c.call_off(cause)

    def _raise_if_over(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._exit is not None:
            raise ExitRequested(self._exit)
