"""Keeps watch while sums are under way on a device, where nothing else would notice that a peer is gone.

gloo learns from its sockets that a peer has died, and its blocked collective fails. A NCCL kernel learns nothing:
between cards of one machine it spins on memory for ever, and over a network the error stays with NCCL's own thread. So
one thread per generation looks at the connections that the generation's gloo group holds to every peer anyway: a
killed process closes them within milliseconds. It also asks NCCL for errors, bounds the wait, and is the last resort
where an abort does not free the rank.

The decision is :func:`judge`, a function of what is seen; the thread carries it out.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from elastrain.elastic.gloo import COLLECTIVE_TIMEOUT

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.05
"""How often it looks while nothing wakes it."""
STUCK_SECONDS = 30.0
"""From an abort until a rank that still waits for its device is given up. NCCL's aborts take well below a second."""


class Act(Enum):
    NOTHING = auto()
    ABORT = auto()
    END_PROCESS = auto()


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is to judge; times are monotonic seconds."""

    now: float
    under_way_since: float | None
    """Since when sums are under way on the device, and have not been waited for; None: there are none."""
    hung_up: bool
    """The connection to a peer has ended."""
    error: str | None
    """What the transport reports."""
    broken_at: float | None


def judge(seen: Seen) -> tuple[Act, str]:
    """What to do, and why. Pure.

    A peer that has hung up matters only to who waits for it: one that left after the last step that it shares with this
    rank has left in good order.
    """
    if seen.under_way_since is None:
        return Act.NOTHING, ""
    if seen.broken_at is not None:
        gone = seen.now - max(seen.broken_at, seen.under_way_since) >= STUCK_SECONDS
        why = f"the device has not come back within {STUCK_SECONDS:g} s of the abort"
        return (Act.END_PROCESS, why) if gone else (Act.NOTHING, "")
    bound = COLLECTIVE_TIMEOUT.total_seconds()
    if seen.hung_up:
        why = "the connection to a peer has ended"
    elif seen.error is not None:
        why = seen.error
    elif seen.now - seen.under_way_since > bound:
        why = f"sums have been under way for {bound:g} s"
    else:
        return Act.NOTHING, ""
    return Act.ABORT, why


class Vigil:
    """The thread. Ended by :meth:`stop`."""

    def __init__(
        self,
        connections: Sequence[socket.socket],
        look: Callable[[float, bool], Seen],
        abort: Callable[[str], None],
        end_process: Callable[[str], None],
    ) -> None:
        """``connections``: one or more to each peer; only looked at, and to be closed after :meth:`stop` only.

        ``look(now, hung_up)`` completes what is seen.
        """
        self._connections = list(connections)
        self._look, self._abort, self._end_process = look, abort, end_process
        self._near, self._far = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="elastrain-vigil", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread looks at nothing any more. Idempotent; not from the thread itself."""
        self._near.close()
        self._thread.join()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._far, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, select.POLLRDHUP)
        hung_up = False
        with self._far:
            while True:
                ended = dict(poll.poll(LOOK_SECONDS * 1000))
                if self._far.fileno() in ended:
                    return
                if ended and not hung_up:
                    hung_up = True
                    for connection in self._connections:  # one is enough, and the others would wake us for ever
                        poll.unregister(connection)
                act, why = judge(self._look(time.monotonic(), hung_up))
                if act is Act.ABORT:
                    self._abort(why)
                elif act is Act.END_PROCESS:
                    self._end_process(why)
                    return


def end_process(why: str) -> None:
    """End this rank by SIGKILL: its agent starts another in its place. Nothing gentler ends a process that waits for a
    device in the driver.
    """
    log.critical("this rank cannot be saved and ends itself; it will be started again", cause=why)
    os.kill(os.getpid(), signal.SIGKILL)
