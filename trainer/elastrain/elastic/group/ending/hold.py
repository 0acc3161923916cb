"""How a rank waits that its agent is to start again, and how it holds the final state after the end of its script."""

from __future__ import annotations

import time
from typing import NoReturn

import structlog

from elastrain.api.messages import Holds, Kept, Misplaced
from elastrain.elastic.group.machine.events import Answered
from elastrain.elastic.group.shell import ExitRequested, Session
from elastrain.link import AgentLost, MessageFailed

log = structlog.get_logger(__name__)

START_SECONDS = 60.0
"""Bound of the wait of a rank that is to start anew at once."""
KEPT_SECONDS = 400.0
"""The same of one that has kept its state: longer than the agent waits for the other ranks of its worker."""
_REMIND_SECONDS = 60.0


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
