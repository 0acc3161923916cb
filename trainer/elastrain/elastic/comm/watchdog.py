"""Keeps watch over the connections of a generation, for those who wait and are not told.

gloo learns from its sockets that a peer has died, and tells the operations that are queued, but not the one that is in
the middle of a message: that one waits on. A NCCL kernel learns nothing at all: between cards of one machine it spins
on memory for ever, and over a network the error stays with NCCL's own thread. So one thread per generation looks at the
connections that the generation's gloo group holds to every peer anyway: a killed process closes them within
milliseconds. For a device it also asks NCCL for errors, bounds the wait, and is the last resort where an abort does not
free the rank. Without one it sleeps until a connection ends.

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

from elastrain.elastic.comm.gloo import COLLECTIVE_TIMEOUT

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.05
"""How often it looks while there is something to see: a device may wait at any time, the host once a peer is gone."""
HOST_SECONDS = 1.0
"""From the end of a connection until an operation on the host that still waits is aborted. gloo itself tells nearly all
of them within 2 ms, with a better reason; and what a peer sent before it left has this long to be read."""
STUCK_SECONDS = 30.0
"""From an abort until a rank that still waits for its device is given up. NCCL's aborts take well below a second."""
HUNG_UP = "the connection to a peer has ended"


class Act(Enum):
    NOTHING = auto()
    ABORT = auto()
    END_PROCESS = auto()


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is to judge; times are monotonic seconds."""

    now: float
    device_since: float | None
    """Since when sums are under way on the device, and have not been waited for; None: there are none."""
    host_since: float | None
    """Since when the oldest operation of gloo is under way; None: there is none."""
    hung_up_at: float | None
    """When the connection to a peer was seen to have ended; None: all are there."""
    error: str | None
    """What the device's transport reports."""
    broken_at: float | None


def judge(seen: Seen) -> tuple[Act, str]:
    """What to do, and why. Pure.

    A peer that has hung up matters only to who waits for it: one that left after the last step that it shares with this
    rank has left in good order.
    """
    if seen.device_since is not None and seen.broken_at is not None:
        gone = seen.now - max(seen.broken_at, seen.device_since) >= STUCK_SECONDS
        why = f"the device has not come back within {STUCK_SECONDS:g} s of the abort"
        return (Act.END_PROCESS, why) if gone else (Act.NOTHING, "")
    if seen.broken_at is None and (why := _in_vain(seen)):
        return Act.ABORT, why
    return Act.NOTHING, ""


def _in_vain(seen: Seen) -> str:
    """Why what is waited for will not come; empty: it may, or nothing is waited for."""
    if seen.device_since is not None:
        bound = COLLECTIVE_TIMEOUT.total_seconds()
        if seen.hung_up_at is not None:
            return HUNG_UP
        if seen.error is not None:
            return seen.error
        if seen.now - seen.device_since > bound:
            return f"sums have been under way for {bound:g} s"
    if (
        seen.host_since is not None
        and seen.hung_up_at is not None
        and seen.now - max(seen.host_since, seen.hung_up_at) >= HOST_SECONDS
    ):
        return HUNG_UP
    return ""


class Vigil:
    """The thread. Ended by :meth:`stop`."""

    def __init__(
        self,
        connections: Sequence[socket.socket],
        look: Callable[[float, float | None], Seen],
        abort: Callable[[str], None],
        end_process: Callable[[str], None],
        *,
        device: bool,
    ) -> None:
        """``connections``: one or more to each peer; only looked at, and to be closed after :meth:`stop` only.

        ``look(now, hung_up_at)`` completes what is seen. ``device``: sums are made on one.
        """
        self._connections = list(connections)
        self._look, self._abort, self._end_process = look, abort, end_process
        self._device = device
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
        hung_up_at: float | None = None
        with self._far:
            while True:
                sees = self._device or hung_up_at is not None
                ended = dict(poll.poll(LOOK_SECONDS * 1000 if sees else None))
                if self._far.fileno() in ended:
                    return
                now = time.monotonic()
                if ended and hung_up_at is None:
                    hung_up_at = now
                    for connection in self._connections:  # one is enough, and the others would wake us for ever
                        poll.unregister(connection)
                act, why = judge(self._look(now, hung_up_at))
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
