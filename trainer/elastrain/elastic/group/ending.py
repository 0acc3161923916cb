"""How a rank ends, other than by the agent's word: its script is over, runs again or starts anew, or it fails itself.

What a script does once, by ``if job.rank == 0`` after its loops, is not repeated on another rank: their scripts have
passed it. If its member is lost before its script has ended, the scripts of all ranks run again from the state after
the last step. Until then the other ranks hold it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import structlog

from elastrain.api.messages import Holds, Kept, Misplaced
from elastrain.api.records import Generation
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.group.machine.events import Answered
from elastrain.elastic.group.shell import ExitRequested, LoopOver, Session, Withdrawn
from elastrain.link import AgentLost, MessageFailed

log = structlog.get_logger(__name__)

START_SECONDS = 60.0
"""Bound of the wait of a rank that is to start anew at once."""
KEPT_SECONDS = 400.0
"""The same of one that has kept its state: longer than the agent waits for the other ranks of its worker."""
_REMIND_SECONDS = 60.0
_NO_FAILURES = (GenerationBroken, RanksDiverged, LoopOver, Withdrawn, ExitRequested, AgentLost, MessageFailed)
"""What has another cause than a failure of this rank, or none."""


# -- waits for the agent -----------------------------------------------------------------------------------------------
def start_anew(session: Session, why: str) -> NoReturn:
    """Ask the agent to start this worker's ranks anew, and wait for the end. Raises as of :meth:`Session.pause`, and
    ``TimeoutError`` after :data:`START_SECONDS`."""
    session.send(Misplaced(why=why))
    _await_start(session, why, START_SECONDS)


def kept(session: Session, why: str, *, holds: bool) -> NoReturn:
    """This rank has kept its state (``holds``), or cannot: wait until its process starts again.

    Raises as of :meth:`Session.pause`, and ``TimeoutError`` after :data:`KEPT_SECONDS`.
    """
    session.send(Kept(why=why, holds=holds))
    _await_start(session, why, KEPT_SECONDS)


def _await_start(session: Session, why: str, seconds: float) -> NoReturn:
    session.feed(Answered())
    session.pause(seconds)
    raise TimeoutError(f"the agent has not started this rank anew within {seconds:g} s: {why}")


def hold(session: Session) -> str:
    """The script of this rank has ended: wait until that of rank 0 has ended too.

    Returns why the script has to run again, because rank 0 was lost; empty: it has not. Waits as long as the agent
    lives, since rank 0 may work for any time; a log line repeats it.
    """
    began = time.monotonic()
    try:
        session.send(Holds())
        while not session.core.repeats:
            log.info(
                "rank 0 still runs its script after training; this rank holds the model until then",
                seconds=round(time.monotonic() - began),
            )
            session.pause(_REMIND_SECONDS)
    except (ExitRequested, AgentLost, MessageFailed):
        return ""
    return session.core.repeats


# -- what is done once -------------------------------------------------------------------------------------------------
class RankZeroLost(Exception):
    """The rank was lost whose script does what is done once, and this rank's script has ended."""


class Once:
    """Which member's script does what is done once, as one rank knows it. Pure."""

    def __init__(self) -> None:
        self.member = ""
        """Id of that member: of rank 0 when the last loop ended; empty before any generation."""
        self.state = 0
        """Digest of this rank's state when the last loop ended; 0: not known."""
        self.ends = False
        """This rank's script has ended."""
        self.under_way = False
        """The script is in a call that has exchanged results already: the code before the call has run on all ranks."""

    def enters(self, generation: Generation, *, agreed: bool, calls: int) -> None:
        """This rank enters ``generation``. ``agreed``: all ranks have left the one before at the same place, those that
        are in none now included. ``calls``: exchanges since the last step; 0: in a loop."""
        if agreed or self.under_way or not calls:
            self.begins(generation)

    def begins(self, generation: Generation | None, state: int = 0) -> None:
        """The code after a loop follows, in ``generation``. ``state``: as of the attribute."""
        self.state = state or self.state
        self.member = generation.first.id if generation is not None and generation.first else ""

    def check(self, generation: Generation) -> None:
        """This rank enters ``generation``, or is in it. Raises :class:`RankZeroLost` if its script has ended, and the
        member is not in it, which cannot have ended its own script."""
        if self.ends and self.member and generation.member(self.member) is None:
            raise RankZeroLost(f"rank 0 ({self.member}) was lost before its script had ended")


# -- own failures ------------------------------------------------------------------------------------------------------
@contextmanager
def ends_this_rank(communicator: Communicator) -> Iterator[None]:
    """Any failure inside the block is this rank's own, such as a state that it cannot load.

    Its peers are freed at once, and its agent knows that its process ends. The error goes on to the script.
    """
    try:
        yield
    except _NO_FAILURES:
        raise
    except BaseException as e:
        communicator.fail_here(e)
        raise
