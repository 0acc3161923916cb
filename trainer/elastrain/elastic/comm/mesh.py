"""Transfers of buffers between all ranks of a generation at once, over their own TCP connections and in one thread.

For each peer there are buffers to send and buffers to fill, in an order that both ends know. Only their bytes travel,
after a header by which both ends check that they do the same (:mod:`elastrain.elastic.comm.header`). Unlike gloo's
point-to-point operations, all transfers end within milliseconds when a peer dies or the generation is aborted, and then
nothing else uses the memory.

A rank that has received all data commits the step. A generation that is *called off*, because another one replaces it,
is therefore not cut at once: a peer that is not in the next one may have received all data already, and its step would
be repeated. All data that any rank has received is then in the sockets of its peers too, and is read
(:meth:`Mesh.call_off`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import torch

from elastrain.elastic.comm.header import HEADER_BYTES, Header, Label, RanksDiverged, difference, encode
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.transport import COLLECTIVE_SECONDS

POLL_SECONDS = 0.05
"""Interval at which a wait checks whether it was called off, and whether this process ran meanwhile."""
QUIET_SECONDS = 0.2
"""An exchange that was called off is given up when no byte has moved for this long: on a busy machine a peer may wait
for a core before it sends its data."""
LAST_SECONDS = 2.0
"""An exchange that was called off is given up after this time in any case."""
FROZEN_SECONDS = 0.75
"""A poll that took this much longer shows that the process did not run. Peers give no rank up sooner: a lease lasts
at least two seconds, and had two thirds of them left."""


Dial = Callable[[Collection[int], Callable[[], bool]], Mapping[int, socket.socket]]
"""Connections to these ranks, by rank, which call it too. Raises :class:`PeerLost`, also soon after the second argument
is true."""


class Mesh:
    """This rank's connections to its peers. For one thread, whose waits end when they are shut."""

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, socket.socket],
        shut: Callable[[], None],
        world_size: int | None = None,
        dial: Dial = lambda _peers, _called_off: {},
    ) -> None:
        """Of ``rank``. ``connections``: by the peer's rank; the caller closes them. ``shut()`` ends them.

        ``world_size``: of the generation, if all ranks may lack connections to some peers, which ``dial`` makes;
        default: none lacks any.
        """
        self.world_size = world_size or len(connections) + 1
        self.sparse = world_size is not None
        """Whether ranks may lack connections; the same on all ranks (:func:`elastrain.elastic.comm.tree.reach`)."""
        self._peers: dict[int, _Peer] = {}
        self._rank, self._dial = rank, dial
        self._announced, self._mine = 0, b""
        self._expected: dict[_Peer, tuple[memoryview, Callable[[], None]]] = {}
        """Where the header of each peer arrives."""
        self._add(connections)
        self._shut = shut
        self._lock = threading.Lock()
        self._begun = 0
        self._called_off_at: float | None = None

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks of all connected peers."""
        return tuple(self._peers)

    def connect(self, peers: Collection[int]) -> None:
        """Connect to those of ``peers`` that are not connected; they do the same at this moment.

        For the thread of :meth:`run`, in an exchange that was begun. Raises :class:`PeerLost`.
        """
        missing = [peer for peer in peers if peer not in self._peers]
        self._add(self._dial(missing, lambda: self._called_off_at is not None))

    def _add(self, connections: Mapping[int, socket.socket]) -> None:
        more = {}
        for rank, connection in connections.items():
            connection.setblocking(False)
            more[rank] = peer = _Peer(rank, connection)
            theirs = bytearray(HEADER_BYTES)
            self._expected[peer] = memoryview(theirs), partial(self._compare, rank, theirs)
        self._peers = dict(sorted((self._peers | more).items()))  # at once: other threads read it

    def begin(self) -> bool:
        """Whether this rank's part in an exchange may begin. If True, call :meth:`end` after it.

        Any thread. Several exchanges may be begun, to run one after the other.
        """
        with self._lock:
            if self._called_off_at is not None:
                return False
            self._begun += 1
            return True

    def end(self) -> None:
        """An exchange that was begun has ended, with or without success."""
        with self._lock:
            self._begun -= 1
            over = self._called_off_at is not None and not self._begun
        if over:
            self._shut()

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """Around an exchange. Raises :class:`PeerLost` if none may begin."""
        if not self.begin():
            raise PeerLost("the generation was called off")
        try:
            yield
        finally:
            self.end()

    def call_off(self) -> None:
        """Let no exchange begin any more. One that has begun continues while bytes move; then the connections are shut.

        A peer that has completed an exchange has received the part of every rank, and has sent its own. The data that
        other ranks still lack is on its way to them, or in their sockets if they wait for a core. No rank can have
        completed an exchange that this rank has not begun. Any thread, idempotent, does not block.
        """
        with self._lock:
            if self._called_off_at is not None:
                return
            self._called_off_at = time.monotonic()
            over = not self._begun
        if over:
            self._shut()

    def announce(self, label: Label, nbytes: int, peers: Collection[int] | None = None) -> None:
        """Queue the header of an exchange, before its data: ``nbytes`` of tensors.

        ``peers``: those that take part; default: all. Every rank takes part in as many exchanges as all others.
        :meth:`run` raises :class:`RanksDiverged` if the header of a peer does not fit.
        """
        self._announced += 1
        self._mine = mine = encode(self._announced, label.kind, label.step, nbytes)
        for peer, expected in self._expected.items():
            if peers is None or peer.rank in peers:
                peer.outgoing.append(memoryview(mine))
                peer.incoming.append(expected)

    def waiting(self) -> dict[int, Header]:
        """The headers of peers that have begun an exchange, by rank, while this rank has begun none. Any thread."""
        with self._lock:  # no exchange begins meanwhile, so that the next bytes of each connection are a header
            if self._begun or self._called_off_at is not None:
                return {}
            seen = {rank: peer.peek(HEADER_BYTES) for rank, peer in self._peers.items()}
        return {rank: Header.decode(raw) for rank, raw in seen.items() if len(raw) == HEADER_BYTES}

    def _compare(self, peer: int, theirs: bytearray) -> None:
        if theirs == self._mine:
            return
        if (what := difference(self._rank, Header.decode(self._mine), peer, Header.decode(theirs))) is not None:
            raise RanksDiverged(what)

    def send(self, peer: int, data: torch.Tensor) -> None:
        """Queue a contiguous CPU tensor, which must not change until :meth:`run` has returned."""
        self._peers[peer].outgoing.append(_bytes_of(data))

    def receive(self, peer: int, into: torch.Tensor, then: Callable[[], None] | None = None) -> None:
        """Fill a contiguous CPU tensor with the next bytes from ``peer``, then call ``then()``, which may send."""
        self._peers[peer].incoming.append((_bytes_of(into), then))

    def has_left(self, peer: int) -> bool:
        """Whether ``peer`` has closed its end, and all its data was read. For the thread of :meth:`run`."""
        return self._peers[peer].has_left

    def run(self, hops: int = 1) -> None:
        """Return when all queued buffers have been sent and received. Every peer that takes part has one by now.

        ``hops``: ranks that wait for each other, one after the other, before this rank receives its last buffer.

        Raises :class:`PeerLost` if a connection ends from which data was expected, and naming the peers if no byte
        moves for :data:`COLLECTIVE_SECONDS`, or for :data:`QUIET_SECONDS` a hop after it was called off.

        A lost peer needs no data any more: a rank that has received the peer's part completes the exchange, since other
        ranks may have completed it too. If all peers are lost, no other rank can have the sum, and it raises
        :class:`PeerLost`.

        A rank that was frozen meanwhile (SIGSTOP, a suspended machine) may wake, find all data in its sockets, and be
        the only rank that has it: the others have given it up, and repeat the step without it. After a freeze the
        exchange therefore completes only if no peer has left.
        """
        frozen, peers = False, [peer for peer in self._peers.values() if peer.events]
        with selectors.DefaultSelector() as selector:
            looked = moved = time.monotonic()
            while self._follow(selector, peers):
                ready = selector.select(POLL_SECONDS)
                for key, events in ready:
                    if events & selectors.EVENT_READ:
                        key.data.read()
                    if events & selectors.EVENT_WRITE:
                        key.data.write()
                now = time.monotonic()
                frozen, looked = frozen or now - looked >= POLL_SECONDS + FROZEN_SECONDS, now
                moved = now if ready else moved
                self._check_patience(now, moved, hops)
        if peers and all(p.refuses for p in peers):
            raise PeerLost("no peer has received the data")
        if frozen and (left := [str(p.rank) for p in peers if p.has_left]):
            raise PeerLost(f"ranks {', '.join(left)} have left while this rank was frozen")

    def _check_patience(self, now: float, moved: float, hops: int) -> None:
        off = self._called_off_at
        bound = COLLECTIVE_SECONDS if off is None else QUIET_SECONDS * hops
        quiet = now - (moved if off is None else max(moved, off))
        if quiet >= bound or (off is not None and now - off >= LAST_SECONDS):
            slow = ", ".join(str(p.rank) for p in self._peers.values() if p.events)
            raise PeerLost(f"no data has come from, or gone to, ranks {slow} for {quiet:.3g} s")

    def _follow(self, selector: selectors.BaseSelector, peers: Sequence[_Peer]) -> bool:
        """Register each connection for the events that its queues need. Returns whether any are left."""
        for peer in peers:
            events = peer.events
            if events == peer.watched:
                continue
            if not peer.watched:
                selector.register(peer.connection, events, peer)
            elif events:
                selector.modify(peer.connection, events, peer)
            else:
                selector.unregister(peer.connection)
            peer.watched = events
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
    """Whether the peer has not received the data sent to it, and never will."""

    @property
    def events(self) -> int:
        return (selectors.EVENT_READ if self.incoming else 0) | (selectors.EVENT_WRITE if self.outgoing else 0)

    @property
    def has_left(self) -> bool:
        """Whether the peer has closed its end, and all its data was read."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def peek(self, count: int) -> bytes:
        """The next bytes, up to ``count``, which stay unread."""
        try:
            return self.connection.recv(count, socket.MSG_PEEK)
        except OSError:
            return b""

    def read(self) -> None:
        """Read the available part of the next buffer, in one call, so that no peer delays the others.

        A header and the buffer after it count as one.
        """
        with contextlib.suppress(BlockingIOError):
            if len(self.incoming[0][0]) > HEADER_BYTES:
                count = self.connection.recv_into(self.incoming[0][0])
            else:
                count = self.connection.recvmsg_into([into for into, _ in islice(self.incoming, 2)])[0]
            if count == 0:
                raise PeerLost(f"rank {self.rank} has closed its connection")
            while count:
                into, then = self.incoming[0]
                if count < len(into):
                    self.incoming[0] = (into[count:], then)
                    return
                count -= len(into)
                self.incoming.popleft()
                if then is not None:
                    then()

    def write(self) -> None:
        """Send as much of the next buffer as the socket takes now. A header and the buffer after it count as one."""
        data = self.outgoing[0]
        try:
            if len(data) > HEADER_BYTES:
                sent = self.connection.send(data)
            else:
                sent = self.connection.sendmsg(list(islice(self.outgoing, 2)))
        except BlockingIOError:
            return
        except OSError:
            self.refuses = True
            self.outgoing.clear()
            return
        while self.outgoing and sent >= len(self.outgoing[0]):
            sent -= len(self.outgoing.popleft())
        if sent:
            self.outgoing[0] = self.outgoing[0][sent:]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # flat: a view counts rows; numpy has no bfloat16
