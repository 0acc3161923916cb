"""The Unix socket between an agent and its ranks: JSON lines as in ``api/messages.py``.

Threads only read and enqueue events; the agent's loop makes all decisions.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from elastrain import threads
from elastrain.agent.core.events import RankHungUp, RankSaid
from elastrain.api.messages import RANK_MESSAGE, AgentMessage, Hello, decode

MAX_LINE = 1 << 20
SEND_SECONDS = 2
"""Seconds after which a rank that does not read (and has a full buffer) is disconnected; it is stopped or lost."""

RETRY_SECONDS = 0.5
"""Seconds until a connection is accepted again after the process had no descriptor or memory for it."""
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EINTR})

log = structlog.get_logger()


class RankServer:
    """Serves the ranks of one incarnation. Its path ends with it, so that ranks of earlier incarnations cannot
    connect."""

    def __init__(self, directory: Path, incarnation: int, put: Callable[[RankSaid | RankHungUp], None]) -> None:
        """Listen in ``directory``, which only this user may enter. Raises ``OSError`` on failure."""
        self.path = directory / f"agent-{incarnation}.sock"
        self._incarnation = incarnation
        self._put = put
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threads.start(self._accept, name="rank-accept")

    def send(self, local_rank: int, message: AgentMessage) -> None:
        """Send, or disconnect a rank that is gone or does not read; :class:`RankHungUp` follows then."""
        with self._lock:
            connection = self._connections.get(local_rank)
        if connection is not None:
            connection.send(message)

    def wait_hangup(self, local_rank: int, timeout: float) -> None:
        """Wait, bounded, until all messages of a dead rank are in the queue."""
        with self._lock:
            connection = self._connections.get(local_rank)
        if connection is not None:
            connection.reader.join(timeout)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes the accepting thread; "not connected" is the normal error
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            connection.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in _PASSING:  # closed
                    return
                log.warning("a rank's connection could not be accepted yet", error=str(error))
                time.sleep(RETRY_SECONDS)
                continue
            _Connection(sock, self).reader.start()

    def claim(self, local_rank: int, connection: _Connection) -> bool:
        """A rank has identified itself; returns whether it may speak.

        It may not while an earlier connection lasts: a child of the rank has its environment, and is no rank.
        """
        with self._lock:
            earlier = self._connections.get(local_rank)
            if earlier is not None and earlier.lasts and not earlier.replaced:
                return False
            self._connections[local_rank] = connection
        return True

    def forget(self, local_rank: int) -> None:
        """Another process is about to become this rank: nothing of the last one's is heard any more."""
        with self._lock:
            earlier = self._connections.pop(local_rank, None)
        if earlier is not None:
            earlier.replaced = True
            earlier.hang_up()

    def said(self, event: RankSaid | RankHungUp) -> None:
        self._put(event)

    @property
    def incarnation(self) -> int:
        return self._incarnation


class _Connection:
    """One rank's connection: a reader thread and bounded sends."""

    def __init__(self, sock: socket.socket, server: RankServer) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
        self._sock = sock
        self._server = server
        self.replaced = False
        self.lasts = True
        """Whether the rank may still speak."""
        self.reader = threads.Thread(self._read, name="rank-read")

    def send(self, message: AgentMessage) -> None:
        try:
            self._sock.sendall(message.encode() + b"\n")
        except OSError as error:
            log.warning("rank does not read its messages", error=str(error), message=message.type)
            self.hang_up()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the rank may have disconnected first
            self._sock.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        local_rank: int | None = None
        try:
            with self._sock, self._sock.makefile("rb") as stream:
                while line := stream.readline(MAX_LINE):
                    message = decode(RANK_MESSAGE, line)
                    if message is None:
                        text = line[:100].decode(errors="replace")
                        log.warning(
                            "a rank's message of an unknown type was ignored", local_rank=local_rank, message=text
                        )
                        continue
                    if isinstance(message, Hello):
                        if not self._server.claim(message.local_rank, self):
                            log.warning("a second process says that it is this rank", local_rank=message.local_rank)
                            return
                        local_rank = message.local_rank
                    if local_rank is None:
                        raise ValueError(f"the first message must be hello, not {message.type}")
                    if not self.replaced:
                        self._server.said(RankSaid(self._server.incarnation, local_rank, message))
        except ValueError as error:
            log.error("invalid message from a rank; disconnecting", local_rank=local_rank, error=str(error))
        except OSError as error:
            log.info("connection of a rank ended", local_rank=local_rank, error=str(error))
        finally:
            self.lasts = False
            if local_rank is not None and not self.replaced:
                self._server.said(RankHungUp(self._server.incarnation, local_rank))
