"""A rank's end of the socket to its agent. Without torch: programs of other frameworks use it in place of a rank."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

import structlog

from elastrain import threads
from elastrain.api import names
from elastrain.api.base import Unreadable
from elastrain.api.messages import AGENT_MESSAGE, AgentMessage, Hello, RankMessage, Welcome, decode

log = structlog.get_logger(__name__)

WELCOME_TIMEOUT = 30.0
"""Bound, in seconds, of a rank's wait for its agent's first answer."""
QUOTED_CHARS = 200
"""Characters of a message that an error quotes."""


class AgentLost(SystemExit):
    """The agent is gone; without it the rank belongs to no generation and must end."""


class MessageFailed(RuntimeError):
    """A message of the agent cannot be read or carried out; without it the rank does not know its generation."""

    def __init__(self, line: bytes, error: Exception) -> None:
        reason = str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        super().__init__(f"the agent's message {line.decode(errors='replace').strip()[:QUOTED_CHARS]} fails: {reason}")
        self.__cause__ = error


class AgentLink:
    """One connection for the life of the rank. Messages arrive in order, on a thread of its own."""

    def __init__(
        self,
        path: str,
        local_rank: int,
        on_message: Callable[[AgentMessage | MessageFailed | None], None],
        *,
        stays: bool = False,
    ) -> None:
        """Connect and introduce this rank; returns after the agent's welcome (:attr:`welcome`). ``stays``: as of
        :class:`Hello`.

        ``on_message`` is called from the reader thread with every later message, and last with None when the connection
        ends, or with the error that ends the reading. Raises ``ConnectionError`` or ``TimeoutError`` naming the socket.
        """
        self._on_message = on_message
        self._send_lock = threading.Lock()
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(WELCOME_TIMEOUT)
        try:
            self._socket.connect(path)
            self.send(Hello(local_rank=local_rank, pid=os.getpid(), stays=stays))
            self._lines = self._socket.makefile("rb")
            first = decode(AGENT_MESSAGE, self._lines.readline())
        except TimeoutError as e:
            raise TimeoutError(f"no welcome from the agent at {path} within {WELCOME_TIMEOUT:.0f} s") from e
        except (OSError, Unreadable) as e:
            raise ConnectionError(f"no agent at {path} (${names.ENV_AGENT_SOCKET}): {e}") from e
        if not isinstance(first, Welcome):
            raise ConnectionError(f"the agent at {path} began with {first and first.type!r}, expected 'welcome'")
        self.welcome = first
        self._socket.settimeout(None)

    def start(self) -> None:
        """Begin to deliver messages."""
        threads.start(self._read, name="elastrain-agent-link")

    def send(self, message: RankMessage) -> None:
        """Raises :class:`AgentLost` if the agent is gone."""
        with self._send_lock:
            try:
                self._socket.sendall(message.encode() + b"\n")
            except OSError as e:
                raise AgentLost(f"the agent is gone (sending {message.type!r}: {e})") from e

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the reader, which has the descriptor, too
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._lines:  # an error is equivalent to an end of file
            for line in self._lines:
                if not line.endswith(b"\n"):
                    break  # the agent ended while it wrote
                try:
                    if (message := decode(AGENT_MESSAGE, line)) is not None:
                        self._on_message(message)
                    else:
                        log.warning(
                            "a message of an unknown type was ignored", message=line[:100].decode(errors="replace")
                        )
                except Exception as e:
                    self._on_message(MessageFailed(line, e))
                    return
        if not self._closed:
            self._on_message(None)
