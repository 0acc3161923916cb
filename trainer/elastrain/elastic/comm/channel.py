"""Authenticated TCP connections between two ranks of a generation, for state and for sums of gradients.

gloo could carry them. But when a connection ends in the middle of a large message, gloo does not notify the operation
that is half done, which then waits for its time-out. A joiner whose source is killed while it sends would wait for
minutes. A socket of our own ends at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum, unique
from typing import Any

from elastrain.elastic.comm import handshake
from elastrain.elastic.comm.handshake import Hello, Identity, Unauthenticated
from elastrain.elastic.comm.listener import Listener
from elastrain.elastic.comm.peer import Patience, PeerLost, PeerSocket, raises_peer_lost
from elastrain.elastic.comm.transport import first_line

CONNECT_SECONDS = 30.0
"""Bound of one connect. Both ends are in the generation, and were alive a moment before."""
ACCEPT_SECONDS = 1800.0
"""Bound of waiting for slow peers to connect. It does not apply to lost peers: their generation is aborted."""
_POLL_SECONDS = 0.2
"""Interval at which a wait checks whether it was called off."""
_RETRY_SECONDS = 0.02
"""Pause before the next attempt if a peer closes a connection before it has proven who it is."""


@unique
class Purpose(IntEnum):
    """The purpose of a connection, sent in its first bytes. Two ranks have at most one connection for each."""

    STATE = 0
    SUMS = 1
    MATES = 2
    SNAPSHOT = 3
    MEETING = 4


class Channels:
    """A rank's ends of its connections in one generation. Peers receive the ``invitation`` when the ranks meet.

    Any thread may call :meth:`shut`, which ends every blocked call; the others are for one thread for each purpose.
    """

    def __init__(self, listener: Listener, identity: Identity) -> None:
        """From now on the peers of ``identity``, this rank, can connect."""
        self._identity, self._listener = identity, listener
        self._changed = threading.Condition()
        self._shut = False
        self._open: list[socket.socket] = []
        self._arrived: dict[tuple[int, int], socket.socket] = {}
        """Connections for which :meth:`accept` has not been called yet, by purpose and rank."""
        listener.expect(identity, self._arrive)

    @property
    def invitation(self) -> str:
        """Address and port."""
        return f"{self._listener.address} {self._listener.port}"

    def missing(self, ranks: Collection[int], purpose: Purpose) -> list[int]:
        """Those of ``ranks`` that have not connected, or whose connections :meth:`accept` has returned."""
        return [r for r in ranks if (purpose, r) not in self._arrived]

    @raises_peer_lost
    def accept(
        self,
        ranks: Collection[int],
        purpose: Purpose,
        within: float = ACCEPT_SECONDS,
        called_off: Callable[[], bool] = lambda: False,
    ) -> dict[int, socket.socket]:
        """Wait for these ranks to connect, up to ``within`` seconds.

        Raises :class:`PeerLost` if shut or called off, and naming the ranks that have not connected.
        """
        ends = time.monotonic() + within
        while True:
            with self._changed:
                missing = self.missing(ranks, purpose)
                if not missing:
                    return {r: self._arrived.pop((purpose, r)) for r in ranks}
                self._raise_if_shut()
                left = ends - time.monotonic()
                if left > 0:
                    self._changed.wait(min(_POLL_SECONDS, left))
            if called_off():
                raise ConnectionAbortedError("these connections are no longer needed")
            if left <= 0:
                names = ", ".join(map(str, missing))
                raise TimeoutError(f"ranks {names} have not connected within {within:g} s")

    @raises_peer_lost
    def connect(
        self, rank: int, invitation: str, purpose: Purpose, called_off: Callable[[], bool] = lambda: False
    ) -> socket.socket:
        """Connect to the ``rank`` with this ``invitation``; both ends have then proven who they are.

        Raises :class:`PeerLost` if shut, called off or after :data:`CONNECT_SECONDS`; :class:`Unauthenticated` if
        another process answers there.
        """
        address, port = invitation.split()
        family, kind, protocol, _, target = socket.getaddrinfo(address, int(port), type=socket.SOCK_STREAM)[0]
        patience = Patience(time.monotonic() + CONNECT_SECONDS, called_off)
        while True:
            connection = self._keep(socket.socket(family, kind, protocol))
            try:
                connection.setblocking(False)
                patience.connect(connection, target)
                if self._greets(connection, patience, self._identity.to(rank, purpose)):
                    connection.setblocking(True)
                    return connection
            except TimeoutError as e:
                self.discard(connection)
                raise TimeoutError(f"rank {rank} has not answered within {CONNECT_SECONDS:g} s") from e
            except BaseException:
                self.discard(connection)
                raise
            self.discard(connection)
            if called_off():
                raise ConnectionAbortedError("this connection is no longer needed")
            time.sleep(_RETRY_SECONDS)

    def meet(
        self, invitations: Mapping[int, str], purpose: Purpose, ranks: Collection[int], called_off: Callable[[], bool]
    ) -> dict[int, socket.socket]:
        """A connection to each of ``ranks``, which do the same: the higher rank of two connects to the other.

        Raises as of :meth:`connect`, and :class:`PeerLost` naming the ranks that have not connected within
        :data:`CONNECT_SECONDS`.
        """
        mine = self._identity.rank
        try:
            made = {rank: self.connect(rank, invitations[rank], purpose, called_off) for rank in ranks if rank < mine}
            return made | self.accept([r for r in ranks if r > mine], purpose, CONNECT_SECONDS, called_off)
        except PeerLost as e:
            raise PeerLost(f"could not connect to every peer: {first_line(e)}") from e

    def _greets(self, connection: socket.socket, patience: Patience, hello: Hello) -> bool:
        """False if the peer has closed the connection early: it had no time for it, or ends."""
        try:
            handshake.call(connection, hello, self._identity.key, patience.receive)
        except (Unauthenticated, ConnectionAbortedError):
            raise
        except ConnectionError:
            with self._changed:
                self._raise_if_shut()
            return False
        return True

    def hand_over(self, connection: socket.socket) -> socket.socket:
        """From now on the caller owns this connection: it outlives the others."""
        with self._changed:
            self._open.remove(connection)
        return connection

    def discard(self, connection: socket.socket) -> None:
        """Close one connection, and forget it. Idempotent."""
        with self._changed:
            if connection in self._open:
                self._open.remove(connection)
        connection.close()

    def shut(self) -> None:
        """End every connection, and every wait for one. Idempotent, any thread."""
        self._listener.forget(self._identity.generation)
        with self._changed:
            self._shut = True
            for connection in self._open:
                with contextlib.suppress(OSError):  # not connected yet, or not any more
                    connection.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()

    def close(self) -> None:
        """Release everything."""
        self.shut()
        with self._changed:
            for connection in self._open:
                connection.close()
            self._open, self._arrived = [], {}

    def _arrive(self, hello: Hello, connection: socket.socket) -> None:
        """A peer has connected; the thread of the listener."""
        if hello.purpose not in set(Purpose):
            connection.close()
            return
        try:
            connection = self._keep(connection)
        except ConnectionAbortedError:
            return
        with self._changed:
            former = self._arrived.pop((hello.purpose, hello.caller), None)
            self._arrived[hello.purpose, hello.caller] = connection
            self._changed.notify_all()
        if former is not None:  # the peer has given it up
            self.discard(former)

    def _keep(self, plain: socket.socket) -> PeerSocket:
        connection = PeerSocket.of(plain)
        with self._changed:
            if self._shut:
                connection.close()
            self._raise_if_shut()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
        return connection

    def _raise_if_shut(self) -> None:
        if self._shut:
            raise ConnectionAbortedError("the connections of this generation were shut")


def receive(connection: socket.socket, into: Any) -> Any:
    """Fill the writable buffer ``into`` and return it. Raises :class:`PeerLost` if it ends before."""
    view = memoryview(into).cast("B")
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise PeerLost("the connection ended")
        view = view[count:]
    return into
