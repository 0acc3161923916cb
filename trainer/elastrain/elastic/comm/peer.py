"""Connections to peers: the one error of a lost peer, and waits that end when they are called off.

Whose failure an exception is follows from where it was raised, not from its kind: ``OSError``, ``RuntimeError`` and
``torch.OutOfMemoryError`` come from a full disk, a full card or a user's ``load_state_dict`` just as well. Only
:class:`PeerLost` means that another generation may succeed. Any other exception is this rank's own failure. It ends
this rank, and its peers go on without it (:meth:`elastrain.elastic.comm.communicator.Communicator.guard`).
"""

from __future__ import annotations

import errno
import functools
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, Self, TypeVar

from elastrain.elastic.comm.transport import first_line

_OF_THIS_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of socket calls that say nothing of the peer: this process or machine has no descriptor or memory left."""

P = ParamSpec("P")
R = TypeVar("R")


class PeerLost(ConnectionError):
    """A peer, or the network to it, has failed; or the generation has ended. It is no failure of this rank."""


class GroupLost(RuntimeError):
    """A rank of this group was lost in a collective that the script runs outside of loop bodies: it has no result. It
    is no failure of the script: this worker's ranks start anew."""


def blames_peer(error: OSError) -> bool:
    """Whether an error of an operation on a connection is the peer's or the network's. Pure."""
    return error.errno not in _OF_THIS_PROCESS


def raises_peer_lost(call: Callable[P, R]) -> Callable[P, R]:
    """``call``, whose errors are those of operations with peers."""

    @functools.wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except (BlockingIOError, PeerLost):
            raise
        except OSError as e:
            if not blames_peer(e):
                raise
            raise PeerLost(first_line(e)) from e

    return wrapped


class PeerSocket(socket.socket):
    """A connection to a peer: its operations raise :class:`PeerLost` if the peer or the network fails.

    ``BlockingIOError`` is raised as usual, and ``OSError`` if this process lacks descriptors or memory.
    """

    @classmethod
    def of(cls, connection: socket.socket) -> Self:
        """Take ``connection`` over, with its timeout."""
        timeout = connection.gettimeout()
        taken = cls(connection.family, connection.type, connection.proto, fileno=connection.detach())
        taken.settimeout(timeout)
        return taken

    connect: Any = raises_peer_lost(socket.socket.connect)
    send: Any = raises_peer_lost(socket.socket.send)
    sendall: Any = raises_peer_lost(socket.socket.sendall)
    sendmsg: Any = raises_peer_lost(socket.socket.sendmsg)
    recv: Any = raises_peer_lost(socket.socket.recv)
    recv_into: Any = raises_peer_lost(socket.socket.recv_into)
    recvmsg_into: Any = raises_peer_lost(socket.socket.recvmsg_into)


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
