"""Accepts the connections of peers, for all generations of a process, in a thread that waits for none of them.

A client that is silent, slow or sends anything else than a proof (:mod:`elastrain.elastic.comm.handshake`) delays no
peer and is closed within :data:`HELLO_SECONDS`.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable

from elastrain import listening, threads
from elastrain.elastic.comm.handshake import (
    HELLO_BYTES,
    HELLO_SECONDS,
    PROOF_BYTES,
    PROTOCOL,
    Challenge,
    Hello,
    Identity,
    Pending,
    Unauthenticated,
)

_PAUSE_SECONDS = 0.05
"""Pause after the system refuses a further descriptor."""


Arrived = Callable[[Hello, socket.socket], None]


class Listener:
    """Listens on a free port of ``address`` until :meth:`close`.

    A process keeps one for its whole life. Its port is therefore known before any generation that includes it.
    """

    def __init__(self, address: str) -> None:
        """Raises ``OSError`` if ``address`` is not one of this host's."""
        self.address, self._socket = address, listening.on(address)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._expected: dict[int, tuple[Identity, Arrived]] = {}
        """By generation."""
        self._pending: Pending[_Caller] = Pending()
        self._callers: set[_Caller] = set()
        self._over = False
        self._woken, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threads.start(self._run, name="elastrain-accept")

    def expect(self, identity: Identity, arrived: Arrived) -> None:
        """From now on the peers of ``identity``, a rank of this process, can connect; those that came before wait.

        ``arrived(hello, connection)`` is called in the thread, for each that has proven who it is. Any thread.
        """
        self._expected[identity.generation] = identity, arrived
        self._wake_up()

    def forget(self, generation: int) -> None:
        """Let no further peer of ``generation`` connect. Idempotent, any thread."""
        self._expected.pop(generation, None)

    def close(self) -> None:
        """Accept nothing any more, and release everything. Idempotent."""
        self._over = True
        self._wake_up()
        self._thread.join()
        self._wake.close()

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            self._wake.send(b".")

    # -- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with self._selector, self._socket, self._woken:
            while not self._over:
                for key, _ in self._selector.select(self._patience()):
                    if key.fileobj is self._socket:
                        self._accept()
                    elif key.data is not None:
                        self._advance(key.data)
                    else:
                        self._woken.recv(2**10)
                        for caller in [c for c in self._callers if c.waits]:
                            self._advance(caller, woken=True)
                now = time.monotonic()
                for caller in [c for c in self._callers if now >= c.deadline]:
                    self._dismiss(caller)
            for caller in list(self._callers):
                self._dismiss(caller)
            self._socket.shutdown(socket.SHUT_RDWR)  # a worker process of a loader may have a copy of it

    def _patience(self) -> float | None:
        if not self._callers:
            return None
        return max(0.0, min(c.deadline for c in self._callers) - time.monotonic())

    def _accept(self) -> None:
        try:
            connection, host = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # it has gone meanwhile
            return
        except OSError:  # no descriptor is left
            time.sleep(_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller = _Caller(connection)
        self._callers.add(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        if (displaced := self._pending.add(caller, host[0])) is not None:
            self._dismiss(displaced)

    def _advance(self, caller: _Caller, *, woken: bool = False) -> None:
        """Read what has come from ``caller``; nothing beyond its proof. ``woken``: its generation may be due."""
        try:
            if caller in self._callers and (woken or caller.read()):
                self._hear(caller)
        except BlockingIOError:
            pass
        except OSError:
            self._dismiss(caller)

    def _hear(self, caller: _Caller) -> None:
        """A message of ``caller`` is complete. Raises ``OSError`` if it does not belong here."""
        hello = caller.hello = caller.hello or Hello.decode(caller.taken)
        if caller.challenge is not None:
            if not caller.challenge.is_met_by(caller.taken):
                raise Unauthenticated("a wrong proof")
            self._forget(caller)
            caller.connection.setblocking(True)
            caller.arrived(hello, caller.connection)
        elif hello.protocol == PROTOCOL and (expected := self._expected.get(hello.generation)) is not None:
            identity, caller.arrived = expected
            if not identity.welcomes(hello):
                raise Unauthenticated("no rank of the generation")
            caller.challenge = Challenge(hello, identity.key)
            caller.connection.send(caller.challenge.answer)  # the buffer of a new connection has room for it
            caller.taken, caller.lacks = bytearray(), PROOF_BYTES

    def _dismiss(self, caller: _Caller) -> None:
        if caller in self._callers:
            self._forget(caller)
            caller.connection.close()

    def _forget(self, caller: _Caller) -> None:
        self._callers.discard(caller)
        self._pending.discard(caller)
        self._selector.unregister(caller.connection)


class _Caller:
    """A client that has not proven yet who it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + HELLO_SECONDS
        self.taken = bytearray()
        self.lacks = HELLO_BYTES
        """Bytes of the present message that have not come yet."""
        self.hello: Hello | None = None
        self.challenge: Challenge | None = None
        self.arrived: Arrived = lambda *_: None

    @property
    def waits(self) -> bool:
        """Whether its generation was not expected yet. It sends nothing before it has an answer."""
        return self.hello is not None and self.challenge is None

    def read(self) -> bool:
        """Whether the present message is complete. Raises ``OSError`` if the connection has ended."""
        data = self.connection.recv(self.lacks)
        if not data:
            raise ConnectionResetError("the client has left")
        self.taken += data
        self.lacks -= len(data)
        return not self.lacks
