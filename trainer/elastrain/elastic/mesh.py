"""Buffers between all ranks of a generation at once, over connections of the project's own and in one thread.

For each peer there are buffers to send and buffers to fill, in an order that both ends know, so nothing but their bytes
travels. Unlike gloo's point-to-point operations, all of it ends within milliseconds when a peer dies or the generation
is aborted, whatever was half sent, and then nobody else holds the memory any more.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from elastrain.elastic.channel import Purpose
from elastrain.elastic.communicator import Communicator
from elastrain.elastic.gloo import COLLECTIVE_TIMEOUT


class Mesh:
    """This rank's connections to all its peers. One thread; an abort of the communicator ends what it waits for."""

    def __init__(self, communicator: Communicator) -> None:
        """Connect to every peer; called by all ranks of the generation alike.

        Raises ``GenerationBroken`` or ``OSError``, after which the generation is to be given up.
        """
        self.communicator = communicator
        communicator.barrier()  # who is lost already shows here; to be waited for is something that nobody else sees
        rank, world = communicator.rank, communicator.world_size
        connections = {peer: communicator.connect(peer, Purpose.GRADIENTS) for peer in range(rank)}
        connections |= communicator.accept(range(rank + 1, world), Purpose.GRADIENTS)
        for connection in connections.values():
            connection.setblocking(False)
        self._peers = {peer: _Peer(peer, connection) for peer, connection in connections.items()}

    @property
    def peers(self) -> tuple[int, ...]:
        """Ranks of all the others."""
        return tuple(self._peers)

    def send(self, peer: int, data: torch.Tensor) -> None:
        """Queue a contiguous CPU tensor, which must not change until :meth:`run` has returned."""
        self._peers[peer].outgoing.append(_bytes_of(data))

    def receive(self, peer: int, into: torch.Tensor, then: Callable[[], None] | None = None) -> None:
        """Have the next bytes from ``peer`` fill a contiguous CPU tensor, and ``then()`` be called; it may send."""
        self._peers[peer].incoming.append((_bytes_of(into), then))

    def run(self) -> None:
        """Return when all that was queued has been sent and received.

        Raises ``OSError`` if a connection ends, ``TimeoutError`` naming the peers if nothing at all moves for as long
        as a collective may take.
        """
        bound = COLLECTIVE_TIMEOUT.total_seconds()
        with selectors.DefaultSelector() as selector:
            while self._follow(selector):
                ready = selector.select(bound)
                if not ready:
                    slow = ", ".join(str(p.rank) for p in self._peers.values() if p.wants)
                    raise TimeoutError(f"nothing has come from, or gone to, ranks {slow} for {bound:g} s")
                for key, events in ready:
                    if events & selectors.EVENT_READ:
                        key.data.read()
                    if events & selectors.EVENT_WRITE:
                        key.data.write()

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

    @property
    def wants(self) -> int:
        return (selectors.EVENT_READ if self.incoming else 0) | (selectors.EVENT_WRITE if self.outgoing else 0)

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
        with contextlib.suppress(BlockingIOError):
            sent = self.connection.send(data)
            if sent < len(data):
                self.outgoing[0] = data[sent:]
            else:
                self.outgoing.popleft()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.numpy()).cast("B")
