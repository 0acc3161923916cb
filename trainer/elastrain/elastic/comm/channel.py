"""Plain TCP connections between two ranks of a generation, for state and for sums of gradients.

gloo could carry them. But when a connection ends in the middle of a large message, gloo does not notify the operation
that is half done, which then waits for its time-out. A joiner whose source is killed while it sends would wait for
minutes. A socket of our own ends at once.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from enum import IntEnum, unique
from typing import Any

CONNECT_SECONDS = 30.0
"""Bound of one connect. Both ends are in the generation, and were alive a moment before."""
ACCEPT_SECONDS = 1800.0
"""Bound of waiting for slow peers to connect. It does not apply to lost peers: their generation is aborted."""
_POLL_SECONDS = 0.2
"""Interval at which a wait checks whether it was called off."""
_TOKEN_BYTES = 16
_RANK_BYTES = 4


@unique
class Purpose(IntEnum):
    """The purpose of a connection, sent in its first bytes. Two ranks have at most one connection for each."""

    STATE = 0
    SUMS = 1
    MATES = 2
    SNAPSHOT = 3


class Channels:
    """A rank's ends of its connections. Peers receive the ``invitation`` when the ranks meet.

    Any thread may call :meth:`shut`, which ends every blocked call; the other methods are for one thread.
    """

    def __init__(self, address: str) -> None:
        """Listen on a free port of ``address``."""
        family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((address, 0), family=family)
        self._address = address
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._lock = threading.Lock()
        self._shut = False
        self._open: list[socket.socket] = [self._listener]
        self._early: dict[tuple[int, int], socket.socket] = {}
        """Connections that came before :meth:`accept` was called for them, by purpose and rank."""

    @property
    def invitation(self) -> str:
        """Address, port, and the token that a peer has to present."""
        return f"{self._address} {self._listener.getsockname()[1]} {self._token.hex()}"

    def accept(
        self,
        ranks: Collection[int],
        purpose: Purpose,
        within: float = ACCEPT_SECONDS,
        called_off: Callable[[], bool] = lambda: False,
    ) -> dict[int, socket.socket]:
        """Wait for these ranks to connect, up to ``within`` seconds.

        Raises ``OSError`` if shut or called off, ``TimeoutError`` naming the ranks that have not connected.
        """
        ends = time.monotonic() + within
        accepted = {r: self._early.pop((purpose, r)) for r in ranks if (purpose, r) in self._early}
        while len(accepted) < len(ranks):
            self._listener.settimeout(max(0.0, min(_POLL_SECONDS, ends - time.monotonic())))
            try:
                connection = self._keep(self._listener.accept()[0])
            except (TimeoutError, BlockingIOError):
                if called_off():
                    raise ConnectionAbortedError("these connections are no longer needed") from None
                if time.monotonic() < ends:
                    continue
                missing = ", ".join(str(r) for r in ranks if r not in accepted)
                raise TimeoutError(f"ranks {missing} have not connected within {within:g} s") from None
            with contextlib.suppress(ConnectionError):  # an unknown client that closed its connection
                hello = bytes(receive(connection, bytearray(_TOKEN_BYTES + 1 + _RANK_BYTES)))
                if hmac.compare_digest(hello[:_TOKEN_BYTES], self._token):
                    kind, rank = hello[_TOKEN_BYTES], int.from_bytes(hello[_TOKEN_BYTES + 1 :], "big")
                    if kind == purpose and rank in ranks:
                        accepted[rank] = connection
                    else:  # the peer is ahead of this rank, which will accept the connection later
                        self._early[kind, rank] = connection
                    continue
            connection.close()
        return accepted

    def connect(self, rank: int, invitation: str, purpose: Purpose) -> socket.socket:
        """Connect, as ``rank``, to the rank with this ``invitation``. Raises ``OSError``."""
        address, port, token = invitation.split()
        family, kind, protocol, _, target = socket.getaddrinfo(address, int(port), type=socket.SOCK_STREAM)[0]
        connection = self._keep(socket.socket(family, kind, protocol))
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(target)
        connection.settimeout(None)
        connection.sendall(bytes.fromhex(token) + bytes([purpose]) + rank.to_bytes(_RANK_BYTES, "big"))
        return connection

    def hand_over(self, connection: socket.socket) -> socket.socket:
        """From now on the caller owns this connection: it outlives the others."""
        with self._lock:
            self._open.remove(connection)
        return connection

    def shut(self) -> None:
        """End every connection, and every wait for one. Idempotent, any thread."""
        with self._lock:
            self._shut = True
            for connection in self._open:
                with contextlib.suppress(OSError):  # not connected yet, or not any more
                    connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release everything."""
        self.shut()
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open = []

    def _keep(self, connection: socket.socket) -> socket.socket:
        with self._lock:
            if self._shut:
                connection.close()
                raise ConnectionAbortedError("the connections of this generation were shut")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
        return connection


def receive(connection: socket.socket, into: Any) -> Any:
    """Fill the writable buffer ``into`` and return it. Raises ``OSError`` if the connection ends before."""
    view = memoryview(into).cast("B")
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the connection ended")
        view = view[count:]
    return into
