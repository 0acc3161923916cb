"""The end of a generation whose gradients NCCL sums: NCCL notices no lost peer, and ranks of a node end together.

A NCCL kernel whose peer is gone waits forever: between cards of one machine it spins on memory, and over a network the
error stays with NCCL's own thread. The TCP connections of a process close within milliseconds when it is killed. Each
rank has them to its neighbours in the tree of the generation (:mod:`elastrain.elastic.comm.tree`). A thread polls them;
a rank that sees the end of one ends its own, so that all ranks see one, hop by hop, whatever they do. Another thread
for each NCCL communicator asks for its errors. If an abort does not free the rank, these threads end the process.

:func:`judge` decides, from one observation; the thread executes the decision.

NCCL maps buffers of the ranks of a node into each other. A rank that aborts alone frees its own, and the kernel of a
neighbour that reads them faults, which ends the neighbour's use of its device (NVIDIA/nccl#863). Here a rank first says
that it gives the communicator up, so that its mates begin no kernel any more; then that its kernels have ended; and it
frees nothing until all mates have said so too, or have ended (:class:`Mates`).
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from elastrain import threads
from elastrain.api.records import Generation
from elastrain.elastic.comm.transport import COLLECTIVE_SECONDS

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.05
"""Interval between two observations."""
STUCK_SECONDS = 30.0
"""From an abort until a rank that still waits for its device is ended. NCCL's aborts take well below a second."""
MATE = "a rank of this node has given the generation up"
HUNG_UP = "the connection to a peer has ended"


class Act(Enum):
    """What the watchdog does."""

    NOTHING = auto()
    PASS_ON = auto()
    """End this rank's connections, for the others: it notices the loss itself when it needs its peers."""
    ABORT = auto()
    END_PROCESS = auto()


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a generation; times are monotonic seconds."""

    now: float
    device_since: float | None
    """When sums began on the device that the host has not waited for; None: there are none."""
    hung_up_at: float | None
    """When the connection to a peer was first seen closed; None: all are open."""
    error: str | None
    """The error that NCCL reports."""
    broken_at: float | None


def judge(seen: Observation) -> tuple[Act, str]:
    """The action to take, and its reason. Pure.

    A closed connection breaks the generation only while this rank waits for its device: a peer may close it after the
    last step that both share. Then no rank needs this one's connections any more.
    """
    if seen.device_since is None:
        lost = seen.hung_up_at is not None and seen.broken_at is None
        return (Act.PASS_ON, HUNG_UP) if lost else (Act.NOTHING, "")
    if seen.broken_at is not None:
        stuck = seen.now - max(seen.broken_at, seen.device_since) >= STUCK_SECONDS
        why = f"the device has not come back within {STUCK_SECONDS:g} s of the abort"
        return (Act.END_PROCESS, why) if stuck else (Act.NOTHING, "")
    if seen.hung_up_at is not None:
        return Act.ABORT, HUNG_UP
    if seen.error is not None:
        return Act.ABORT, seen.error
    if seen.now - seen.device_since > COLLECTIVE_SECONDS:
        return Act.ABORT, f"sums have been under way for {COLLECTIVE_SECONDS:g} s"
    return Act.NOTHING, ""


class Watchdog:
    """The thread of one generation. It ends by :meth:`stop`."""

    def __init__(
        self,
        connections: Sequence[socket.socket],
        mates: Sequence[socket.socket],
        observe: Callable[[float, float | None], Observation],
        *,
        abort: Callable[[str], None],
        pass_on: Callable[[], None],
        end_process: Callable[[str], None],
    ) -> None:
        """``connections``: to peers; ``mates``: those of :class:`Mates`. The thread only polls them; close them
        after :meth:`stop`.

        ``observe(now, hung_up_at)`` completes an observation.
        """
        self._connections, self._mates = list(connections), {mate.fileno(): mate for mate in mates}
        self._observe, self._abort, self._pass_on, self._end_process = observe, abort, pass_on, end_process
        self._near, self._far = socket.socketpair()
        self._thread = threads.start(self._watch, name="elastrain-watchdog")

    def stop(self) -> None:
        """Return when the thread has ended. Idempotent; not callable from the thread itself."""
        self._near.close()
        self._thread.join()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._far, select.POLLIN)
        for connection in self._connections:
            poll.register(connection, select.POLLRDHUP)
        for mate in self._mates:
            poll.register(mate, select.POLLIN)
        hung_up_at: float | None = None
        with self._far:
            while True:
                ended = dict(poll.poll(POLL_SECONDS * 1000))
                if self._far.fileno() in ended:
                    return
                for mate in [fd for fd in ended if fd in self._mates]:
                    poll.unregister(mate)
                    del ended[mate]
                    if has_begun(self._mates[mate]):
                        self._abort(MATE)
                now = time.monotonic()
                if ended and hung_up_at is None:
                    hung_up_at = now
                    for connection in self._connections:  # a closed connection would end every later poll at once
                        poll.unregister(connection)
                act, why = judge(self._observe(now, hung_up_at))
                if act is Act.ABORT:
                    self._abort(why)
                elif act is Act.PASS_ON:
                    self._pass_on()
                elif act is Act.END_PROCESS:
                    self._end_process(why)
                    return


def end_process(why: str) -> None:
    """End this rank; its agent starts another one. Only SIGKILL ends a process that waits in the driver."""
    log.critical("the device does not respond; this rank ends itself and will be started again", cause=why)
    os.kill(os.getpid(), signal.SIGKILL)


AGREE_SECONDS = 1.0
"""Bound of waiting for mates. One that is frozen says nothing; its process ends in any case."""
_BEGUN, _ENDED = b"b", b"e"


def mates_of(generation: Generation, rank: int) -> list[int]:
    """The other ranks of this ``rank``'s worker. Pure."""
    for member in generation.members:
        if member.rank_offset <= rank < member.rank_offset + member.slots:
            ranks = range(member.rank_offset, member.rank_offset + member.slots)
            return [r for r in ranks if r != rank]
    return []


class Mates:
    """One connection to each mate, which outlives the generation's others. Any thread; one of them calls agree()."""

    def __init__(self, connections: Mapping[int, socket.socket]) -> None:
        """``connections``: by rank; closed by :meth:`close`."""
        self.connections = dict(connections)

    def begin(self) -> None:
        """This rank gives its communicator up: the mates' watchdogs make them do the same."""
        self._say(_BEGUN)

    def agree(self, seconds: float = AGREE_SECONDS) -> list[int]:
        """This rank's kernels have ended. Return when those of all mates have; the ranks of which that is not known."""
        self._say(_ENDED)
        missing, end = dict(self.connections), time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for rank, connection in missing.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while missing and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    rank = key.data
                    try:
                        said = missing[rank].recv(16)
                    except OSError:
                        said = b""
                    if not said or _ENDED in said:  # it has closed, or died: nothing of it runs any more
                        selector.unregister(missing.pop(rank))
        return sorted(missing)

    def close(self) -> None:
        """Idempotent."""
        for connection in self.connections.values():
            connection.close()

    def _say(self, what: bytes) -> None:
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.send(what)


def has_begun(connection: socket.socket) -> bool | None:
    """Whether the mate at the other end gives its communicator up; None: it has closed its end. For readable sockets.

    The byte stays unread, for :meth:`Mates.agree`.
    """
    try:
        return bool(connection.recv(1, socket.MSG_PEEK)) or None
    except OSError:
        return None
