"""Buffers between all ranks of a generation at once, over connections of the project's own and in one thread.

For each peer there are buffers to send and buffers to fill, in an order that both ends know, so nothing but their bytes
travels. Unlike gloo's point-to-point operations, all of it ends within milliseconds when a peer dies or the generation
is aborted, whatever was half sent, and then nobody else holds the memory any more.

A rank that has everything commits the step. So a generation that is *called off*, because another one is to take its
place, is not cut where it stands: a peer that is not in the next one may have everything already, and its step would be
done again. Whatever any rank has is in everybody's sockets then, and is read (:meth:`Mesh.call_off`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from elastrain.elastic.comm.gloo import COLLECTIVE_TIMEOUT

LOOK_SECONDS = 0.05
"""How often a wait is interrupted to see whether it was called off, and whether this process ran meanwhile."""
QUIET_SECONDS = 0.2
"""What was called off is given up when nothing has moved for so long: on a busy machine a peer may have to wait for a
core before it sends what it has."""
LAST_SECONDS = 2.0
"""… or when it has gone on for so long."""
FROZEN_SECONDS = 0.75
"""A wait that took so much longer says that it did not. Nobody is given up sooner: a lease lasts two seconds at least,
and had two thirds of them left."""


class Mesh:
    """This rank's connections to all its peers. One thread; it stops waiting when they are shut."""

    def __init__(self, connections: Mapping[int, socket.socket], shut: Callable[[], None]) -> None:
        """``connections``: one to each peer, by its rank; they stay the caller's to close, and ``shut`` ends them."""
        for connection in connections.values():
            connection.setblocking(False)
        self._peers = {peer: _Peer(peer, connections[peer]) for peer in sorted(connections)}
        self._shut = shut
        self._lock = threading.Lock()
        self._begun = 0
        self._called_off_at: float | None = None

    @property
    def peers(self) -> tuple[int, ...]:
        """Ranks of all the others."""
        return tuple(self._peers)

    def begin(self) -> bool:
        """Whether this rank's part in an exchange may begin; then it is for :meth:`end` to say that it is over.

        Any thread; several may be begun, to be run one after the other.
        """
        with self._lock:
            if self._called_off_at is not None:
                return False
            self._begun += 1
            return True

    def end(self) -> None:
        """What has begun is over, well or not."""
        with self._lock:
            self._begun -= 1
            over = self._called_off_at is not None and not self._begun
        if over:
            self._shut()

    def call_off(self) -> None:
        """Have nothing begin any more; what has begun goes on while it moves. Then the connections are shut.

        A peer that has completed an exchange has had its part from every rank, and has sent its own: what the others
        still lack is on its way to them or, if they wait for a core, in their sockets. An exchange that this rank has
        not begun can have been completed by nobody. Any thread, idempotent, does not block.
        """
        with self._lock:
            if self._called_off_at is not None:
                return
            self._called_off_at = time.monotonic()
            over = not self._begun
        if over:
            self._shut()

    def send(self, peer: int, data: torch.Tensor) -> None:
        """Queue a contiguous CPU tensor, which must not change until :meth:`run` has returned."""
        self._peers[peer].outgoing.append(_bytes_of(data))

    def receive(self, peer: int, into: torch.Tensor, then: Callable[[], None] | None = None) -> None:
        """Have the next bytes from ``peer`` fill a contiguous CPU tensor, and ``then()`` be called; it may send."""
        self._peers[peer].incoming.append((_bytes_of(into), then))

    def run(self) -> None:
        """Return when all that was queued has been sent and received.

        Raises ``OSError`` if a connection ends that something was to come from, ``TimeoutError`` naming the peers if
        nothing at all moves for as long as a collective may take, or for :data:`QUIET_SECONDS` if it was called off.

        A peer that is gone needs nothing any more: who has had its part completes what it can, since others may have.
        Not if they all are: a sum that nobody else can have is one that nobody else has.

        A rank that was frozen meanwhile (SIGSTOP, a suspended machine) may wake, find everything that it waited for in
        its sockets, and be the only one that has it all: the others have given up what it had not sent, and do the
        step again without it. So then it is done only if no peer has left.
        """
        frozen = False
        with selectors.DefaultSelector() as selector:
            looked = moved = time.monotonic()
            while self._follow(selector):
                ready = selector.select(LOOK_SECONDS)
                for key, events in ready:
                    if events & selectors.EVENT_READ:
                        key.data.read()
                    if events & selectors.EVENT_WRITE:
                        key.data.write()
                now = time.monotonic()
                frozen, looked = frozen or now - looked >= LOOK_SECONDS + FROZEN_SECONDS, now
                moved = now if ready else moved
                self._check_patience(now, moved)
        if self._peers and all(p.refuses for p in self._peers.values()):
            raise ConnectionResetError("no peer has taken what was sent")
        if frozen and (left := [str(p.rank) for p in self._peers.values() if p.has_left]):
            raise ConnectionResetError(f"ranks {', '.join(left)} have left while this rank did not run")

    def _check_patience(self, now: float, moved: float) -> None:
        off = self._called_off_at
        bound = COLLECTIVE_TIMEOUT.total_seconds() if off is None else QUIET_SECONDS
        quiet = now - (moved if off is None else max(moved, off))
        if quiet >= bound or (off is not None and now - off >= LAST_SECONDS):
            slow = ", ".join(str(p.rank) for p in self._peers.values() if p.wants)
            raise TimeoutError(f"nothing has come from, or gone to, ranks {slow} for {quiet:.3g} s")

    def _follow(self, selector: selectors.BaseSelector) -> bool:
        """Watch each connection for what its queues want now. Returns whether anything is left to do."""
        for peer in self._peers.values():
            wants = peer.wants
            if wants == peer.watched:
                continue
            if not peer.watched:
                selector.register(peer.connection, wants, peer)
            elif wants:
                selector.modify(peer.connection, wants, peer)
            else:
                selector.unregister(peer.connection)
            peer.watched = wants
        return bool(selector.get_map())


@dataclass(slots=True, eq=False)
class _Peer:
    rank: int
    connection: socket.socket
    outgoing: deque[memoryview] = field(default_factory=deque)
    incoming: deque[tuple[memoryview, Callable[[], None] | None]] = field(default_factory=deque)
    watched: int = 0
    """Events for which a selector watches the connection."""
    refuses: bool = False
    """Whether it has not taken what was sent, and will take nothing more."""

    @property
    def wants(self) -> int:
        return (selectors.EVENT_READ if self.incoming else 0) | (selectors.EVENT_WRITE if self.outgoing else 0)

    @property
    def has_left(self) -> bool:
        """Whether its end is closed, and nothing it has sent is unread."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def read(self) -> None:
        """What is there of the next buffer: one call, so that no peer keeps the others waiting."""
        into, then = self.incoming[0]
        with contextlib.suppress(BlockingIOError):
            count = self.connection.recv_into(into)
            if count == 0:
                raise ConnectionResetError(f"rank {self.rank} has closed its connection")
            if count < len(into):
                self.incoming[0] = (into[count:], then)
                return
            self.incoming.popleft()
            if then is not None:
                then()

    def write(self) -> None:
        """As much of the next buffer as goes now."""
        data = self.outgoing[0]
        try:
            sent = self.connection.send(data)
        except BlockingIOError:
            return
        except OSError:
            self.refuses = True
            self.outgoing.clear()
            return
        if sent < len(data):
            self.outgoing[0] = data[sent:]
        else:
            self.outgoing.popleft()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(torch.uint8).numpy())  # numpy knows no bfloat16
