"""Plain connections between two ranks of a generation, for state and for sums of gradients.

gloo could carry them, but for what it does when a connection ends in the middle of a large message: the operation that
was half done is told nothing, and waits for its timeout (its ``Pair::signalException`` passes over ``tx_`` and
``rx_``). A joiner whose source is killed while it sends would sit there for minutes. A socket of our own ends at once.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from enum import IntEnum
from typing import Any

CONNECT_SECONDS = 30.0
"""Bound of one connect; both ends are in the generation, and were alive a moment ago."""
ACCEPT_SECONDS = 1800.0
"""Bound of waiting for others to connect, who may be slow; for those that are lost the generation is aborted."""
_LOOK_SECONDS = 0.2
"""How often a wait for others is interrupted to see whether it was called off."""
_TOKEN_BYTES = 16
_RANK_BYTES = 4


class Purpose(IntEnum):
    """What a connection is for. Two ranks have at most one for each; it is said in the connection's first bytes."""

    STATE = 0
    SUMS = 1


class Channels:
    """The ends of a rank's connections. Those who are to connect learn the ``invitation`` from their meeting.

    Any thread may call :meth:`shut`, which ends what others are blocked in; the rest is for one thread.
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
        """Connections that came before they were waited for, by purpose and rank."""

    @property
    def invitation(self) -> str:
        """Where to connect to, and the proof of having been told so."""
        return f"{self._address} {self._listener.getsockname()[1]} {self._token.hex()}"

    def accept(
        self,
        ranks: Collection[int],
        purpose: Purpose,
        within: float = ACCEPT_SECONDS,
        called_off: Callable[[], bool] = lambda: False,
    ) -> dict[int, socket.socket]:
        """Wait for these ranks to connect, up to ``within`` seconds.

        Raises ``OSError`` when shut or called off, ``TimeoutError`` naming who has not come.
        """
        ends = time.monotonic() + within
        accepted = {r: self._early.pop((purpose, r)) for r in ranks if (purpose, r) in self._early}
        while len(accepted) < len(ranks):
            self._listener.settimeout(max(0.0, min(_LOOK_SECONDS, ends - time.monotonic())))
            try:
                connection = self._keep(self._listener.accept()[0])
            except (TimeoutError, BlockingIOError):
                if called_off():
                    raise ConnectionAbortedError("nobody needs these connections any more") from None
                if time.monotonic() < ends:
                    continue
                missing = ", ".join(str(r) for r in ranks if r not in accepted)
                raise TimeoutError(f"ranks {missing} have not connected within {within:g} s") from None
            with contextlib.suppress(ConnectionError):  # a stranger who hung up
                hello = bytes(receive(connection, bytearray(_TOKEN_BYTES + 1 + _RANK_BYTES)))
                if hmac.compare_digest(hello[:_TOKEN_BYTES], self._token):
                    kind, rank = hello[_TOKEN_BYTES], int.from_bytes(hello[_TOKEN_BYTES + 1 :], "big")
                    if kind == purpose and rank in ranks:
                        accepted[rank] = connection
                    else:  # it is further than this rank, which will wait for it later
                        self._early[kind, rank] = connection
                    continue
            connection.close()
        return accepted

    def connect(self, rank: int, invitation: str, purpose: Purpose) -> socket.socket:
        """Connect, as ``rank``, to the one that gave ``invitation``. Raises ``OSError``."""
        address, port, token = invitation.split()
        family, kind, protocol, _, target = socket.getaddrinfo(address, int(port), type=socket.SOCK_STREAM)[0]
        connection = self._keep(socket.socket(family, kind, protocol))
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(target)
        connection.settimeout(None)
        connection.sendall(bytes.fromhex(token) + bytes([purpose]) + rank.to_bytes(_RANK_BYTES, "big"))
        return connection

    def shut(self) -> None:
        """End every connection, and every wait for one. Idempotent."""
        with self._lock:
            self._shut = True
            for connection in self._open:
                with contextlib.suppress(OSError):  # not connected yet, or no more
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
