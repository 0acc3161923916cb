"""How the launcher asks a node for a process: one TCP connection per process, one JSON object per line.

========  ===================================================================
node      ``{"nonce": NONCE}``
launcher  ``{"body": REQUEST, "mac": HMAC-SHA256(token, NONCE + REQUEST)}``
node      ``{"pid": PID}``; or it closes the connection: not now, ask again
node      ``{"code": CODE}`` when the process has ended by itself
========  ===================================================================

The connection lives as long as the process: if the launcher closes it or dies, the node ends the process. If the node
ends the process for another reason, it closes the connection without a code. The token is
a record of the job in etcd, which only this job's workers can read. It never travels between workers, and a request
cannot be repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from elastrain.api import names
from elastrain.api.base import Record, Unreadable
from elastrain.api.keys import JobKeys

ANSWER_SECONDS = 10.0
"""Bound of each wait for a line that the other side sends at once."""
_LINE = 1 << 16
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 3}
"""A machine that disappears without a word ends its connections after 5 + 3 * 2 s."""


class Request(Record):
    """What the launcher asks of a node."""

    launcher: str
    """Id of the member that runs the launcher."""
    kind: Literal["run", "ping", "done"] = "run"
    """``ping``: whether the node obeys this launcher. ``done``: training is complete, and the node finishes."""
    slot: int = 0
    """Place of the process in its worker (Horovod's local rank)."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Horovod's, added to the environment of the node."""


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, **message: object) -> None:
        """Raises ``OSError``."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """The next object; None if there is none within ``seconds``. Raises ``OSError`` if the connection has ended,
        ``ConnectionError`` if the line is no object."""
        self._socket.settimeout(seconds)
        while b"\n" not in self._buffer:
            try:
                chunk = self._socket.recv(4096)
            except TimeoutError as error:
                if error.errno is not None:  # the kernel's word that the other machine is gone
                    raise
                return None
            if not chunk:
                raise ConnectionError("the connection was closed")
            self._buffer += chunk
            if len(self._buffer) > _LINE:
                raise ConnectionError(f"a line of more than {_LINE} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ConnectionError(f"not JSON: {error}") from error
        if not isinstance(message, dict):
            raise ConnectionError("not a JSON object")
        return message

    def await_end(self) -> None:
        """Return when the other side has closed the connection, or :meth:`close` was called."""
        self._socket.settimeout(None)
        with contextlib.suppress(OSError):
            while self._socket.recv(4096):
                pass  # the launcher sends nothing more

    def close(self) -> None:
        """Also wakes a thread in :meth:`await_end`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def ask(address: str, port: int, request: Request, token: str) -> Channel:
    """Connect to a node and send ``request``. Raises ``OSError``."""
    connection = socket.create_connection((address, port), timeout=ANSWER_SECONDS)
    channel = Channel(connection)
    try:
        greeting = channel.receive(ANSWER_SECONDS)
        if greeting is None:
            raise TimeoutError(f"node {address}:{port} did not greet within {ANSWER_SECONDS:g} s")
        body = request.encode().decode()
        channel.send(body=body, mac=_mac(token, str(greeting.get("nonce")), body))
    except OSError:
        channel.close()
        raise
    return channel


class Signed:
    """A request as it arrived: it counts only with the right token."""

    def __init__(self, nonce: str, body: str, mac: str) -> None:
        self._nonce, self._body, self._mac = nonce, body, mac

    @classmethod
    def arriving_on(cls, channel: Channel) -> Signed:
        """Greet, and read a request. Raises ``OSError``."""
        nonce = secrets.token_hex(16)
        channel.send(nonce=nonce)
        message = channel.receive(ANSWER_SECONDS) or {}
        return cls(nonce, str(message.get("body")), str(message.get("mac")))

    def by(self, token: str) -> Request | None:
        """The request; None if it was not signed with ``token``, or is not valid."""
        if not token or not hmac.compare_digest(self._mac.encode(), _mac(token, self._nonce, self._body).encode()):
            return None
        with contextlib.suppress(Unreadable):
            return Request.decode(self._body)
        return None


def _mac(token: str, nonce: str, body: str) -> str:
    return hmac.new(token.encode(), (nonce + body).encode(), hashlib.sha256).hexdigest()


def token_key(environ: Mapping[str, str], launcher: str) -> str:
    """Key of the token of the newest launcher that member ``launcher`` has started."""
    keys = JobKeys(environ.get(names.ENV_NAMESPACE) or "default", environ[names.ENV_JOB], environ[names.ENV_JOB_UID])
    return f"{keys.prefix}horovod/{launcher}"
