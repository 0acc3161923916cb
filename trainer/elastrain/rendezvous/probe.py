"""Probes agents over TCP when a generation broke, so that a dead one is detected before its lease expires.

The answer is one line, ``elastrain <member id>``, sent on each connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum

from elastrain import listening

GREETING = "elastrain "
TIMEOUT = 0.5
"""Seconds for the connection and again for the answer."""


class Evidence(Enum):
    """The result of a probe."""

    ALIVE = "alive"
    DEAD = "dead"
    """The host refuses the connection, or another member answers."""
    NONE = "none"
    """No answer: a slow host, a lost packet and a cut network are indistinguishable. The lease decides."""


def probe(address: str, port: int, member_id: str, *, timeout: float = TIMEOUT) -> Evidence:
    """Probe the agent at ``address:port`` for ``member_id``."""
    try:
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            with connection.makefile("r", encoding="utf-8", errors="replace") as answer:
                line = answer.readline(512)
    except (ConnectionRefusedError, ConnectionResetError):
        return Evidence.DEAD
    except OSError:
        return Evidence.NONE
    if not line.startswith(GREETING):
        return Evidence.NONE
    return Evidence.ALIVE if line.removeprefix(GREETING).strip() == member_id else Evidence.DEAD


class ProbeServer:
    """Answers probes from one thread while the process lives."""

    def __init__(self, member_id: Callable[[], str], host: str = "") -> None:
        """``member_id``: returns this agent's current id. ``host``: interface to listen on; empty: all.

        Raises ``OSError`` if it cannot listen.
        """
        self._member_id = member_id
        self._socket = listening.on(host) if host else listening.everywhere()
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="probe-server", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            with connection, contextlib.suppress(OSError):  # the client has disconnected
                connection.settimeout(TIMEOUT)
                connection.sendall(f"{GREETING}{self._member_id()}\n".encode())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._socket.close()
        self._thread.join(timeout=2 * TIMEOUT)
