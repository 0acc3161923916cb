"""Waits for a socket that end when they are called off, or after a time."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

POLL_SECONDS = 0.05
"""Interval at which a wait checks whether it was called off."""


@dataclass(frozen=True, slots=True)
class Patience:
    """All methods take a socket that does not block, and raise ``ConnectionAbortedError`` when called off,
    ``TimeoutError`` when the time is over, and any other ``OSError`` of the connection."""

    ends: float
    """Monotonic time."""
    called_off: Callable[[], bool]

    def connect(self, connection: socket.socket, target: tuple[object, ...]) -> None:
        """``target``: the address, with a number for a host."""
        if (error := connection.connect_ex(target)) == errno.EINPROGRESS:
            self._await(connection, selectors.EVENT_WRITE)
            error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))

    def receive(self, connection: socket.socket, into: bytearray) -> bytearray:
        """Fill ``into``, and return it. Raises ``ConnectionResetError`` if the connection ends before."""
        view = memoryview(into)
        while view:
            self._await(connection, selectors.EVENT_READ)
            if not (count := connection.recv_into(view)):
                raise ConnectionResetError("the other end has closed the connection")
            view = view[count:]
        return into

    def _await(self, connection: socket.socket, event: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(connection, event)
            while True:
                left = self.ends - time.monotonic()
                if selector.select(max(0.0, min(POLL_SECONDS, left))):
                    return
                if self.called_off():
                    raise ConnectionAbortedError("this connection is no longer needed")
                if left <= 0:
                    raise TimeoutError("no answer has come in time")
