"""Both ends of a connection between ranks prove that they know the secret of their generation.

The secret is in the generation's record in etcd, which only the job's user can read; neither end sends it. Three
messages of fixed size::

    caller     hello: magic, protocol, purpose, generation, its rank, the listener's rank, its nonce
    listener   its nonce, and HMAC-SHA256 of the hello and both nonces, as the listener
    caller     HMAC-SHA256 of the same, as the caller

The nonces make every proof worthless on another connection, so that a recorded handshake cannot be replayed. The two
roles have different proofs, so that none can be sent back to its author. What follows on the connection is neither
encrypted nor authenticated: see SECURITY.md.

The layout of these messages is the same in all versions of the protocol. Pure, except for :func:`call`.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from elastrain.api.records import Generation
from elastrain.elastic.comm.peer import PeerLost

PROTOCOL = 32
"""Version of what ranks of a generation must have in common: formats (rows, header, sums, pieces, control vector), who
connects to whom, and the order of the data. A listener lets a caller of another one wait."""
HELLO_SECONDS = 2.0
"""A listener closes a connection that has not proven by then who it is."""
PENDING = 256
"""Connections that have not proven yet who they are, at one listener."""
NONCE_BYTES = 32
PROOF_BYTES = 32
_KEY_BYTES = 32
_MAGIC = b"elastrn1"
_HELLO = struct.Struct(f"!8sIIQII{NONCE_BYTES}s")
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES


class Unauthenticated(PeerLost):
    """The other end has not proven that it belongs to the generation."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank of a generation, as it proves itself to the others."""

    generation: int
    rank: int
    world_size: int
    key: bytes = field(repr=False)
    """The secret of the generation."""

    @classmethod
    def of(cls, generation: Generation, rank: int) -> Self:
        """Raises :class:`Unauthenticated` if the generation has no secret."""
        try:
            key = bytes.fromhex(generation.secret)
        except ValueError:  # whose text would quote the secret
            key = b""
        if len(key) < _KEY_BYTES:
            raise Unauthenticated(
                f"generation {generation.number} has no secret of {_KEY_BYTES} bytes: its leader, {generation.leader}, "
                "runs another version of elastrain"
            )
        return cls(generation.number, rank, generation.world_size, key)

    def to(self, listener: int, purpose: int) -> Hello:
        """The hello of a connection to the rank ``listener``."""
        return Hello(PROTOCOL, purpose, self.generation, self.rank, listener, secrets.token_bytes(NONCE_BYTES))

    def welcomes(self, hello: Hello) -> bool:
        """Whether ``hello`` is addressed to this rank, by another one of its generation."""
        return hello.listener == self.rank and hello.caller < self.world_size and hello.caller != self.rank


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a connection. Nothing in it is true before the caller's proof has arrived."""

    protocol: int
    purpose: int
    generation: int
    caller: int
    """Its rank."""
    listener: int
    """Its rank."""
    nonce: bytes

    def encode(self) -> bytes:
        """:data:`HELLO_BYTES` bytes."""
        return _HELLO.pack(_MAGIC, self.protocol, self.purpose, self.generation, self.caller, self.listener, self.nonce)

    @classmethod
    def decode(cls, raw: bytes | bytearray) -> Self:
        """Raises :class:`Unauthenticated` if it is none."""
        if len(raw) != HELLO_BYTES or raw[: len(_MAGIC)] != _MAGIC:
            raise Unauthenticated("not a rank of elastrain")
        return cls(*_HELLO.unpack(raw)[1:])


class Challenge:
    """The listener's part in one handshake."""

    def __init__(self, hello: Hello, key: bytes) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        self.answer = nonce + _proof(key, b"listener", hello, nonce)
        """To send to the caller."""
        self._expected = _proof(key, b"caller", hello, nonce)

    def is_met_by(self, proof: bytes | bytearray) -> bool:
        """Whether the caller's last message proves that it knows the key."""
        return hmac.compare_digest(proof, self._expected)


def call(
    connection: socket.socket, hello: Hello, key: bytes, receive: Callable[[socket.socket, bytearray], bytearray]
) -> None:
    """The caller's part, on a new connection. ``receive(connection, buffer)`` fills the buffer and returns it.

    Raises :class:`Unauthenticated` if the listener does not know the key, and ``OSError``.
    """
    connection.sendall(hello.encode())
    answer = bytes(receive(connection, bytearray(ANSWER_BYTES)))
    nonce = answer[:NONCE_BYTES]
    if not hmac.compare_digest(answer[NONCE_BYTES:], _proof(key, b"listener", hello, nonce)):
        raise Unauthenticated(f"what answers is not rank {hello.listener} of generation {hello.generation}")
    connection.sendall(_proof(key, b"caller", hello, nonce))


def _proof(key: bytes, role: bytes, hello: Hello, nonce: bytes) -> bytes:
    return hmac.digest(key, role + b"\0" + hello.encode() + nonce, "sha256")


T = TypeVar("T")


class Pending(Generic[T]):
    """The connections at a listener that have proven nothing yet, up to :data:`PENDING` of them."""

    def __init__(self, limit: int = PENDING) -> None:
        self._limit = limit
        self._hosts: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    def add(self, connection: T, host: str) -> T | None:
        """Returns the connection to close for it: the oldest one of the host with the most of them.

        A host that floods the listener thus displaces its own connections, and none of a peer.
        """
        self._hosts[connection] = host
        if len(self._hosts) <= self._limit:
            return None
        busiest = Counter(self._hosts.values()).most_common(1)[0][0]
        oldest = next(c for c, h in self._hosts.items() if h == busiest)
        del self._hosts[oldest]
        return oldest

    def discard(self, connection: T) -> None:
        """It has proven who it is, or is closed."""
        self._hosts.pop(connection, None)
