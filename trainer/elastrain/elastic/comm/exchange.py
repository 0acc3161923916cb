"""The client side of a meeting: a rank sends its values and receives those of all ranks of its generation."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastrain.api.records import Generation
from elastrain.elastic.comm import handshake
from elastrain.elastic.comm.handshake import Identity
from elastrain.elastic.comm.meeting import LENGTH_BYTES, MAX_REQUEST, framed
from elastrain.elastic.comm.peer import Patience, blames_peer, raises_peer_lost
from elastrain.elastic.comm.transport import CalledOff

PROTOCOL = 31
"""Version of what ranks of a generation must have in common: formats (table, header, sums, pieces, control vector), who
connects to whom, and the order of the data."""
MEETING_SECONDS = 60.0
"""Bound of waiting for peers that do not come. A lost peer shows sooner, by a newer generation."""
_REACH_SECONDS = 1.0
"""Bound of one attempt to connect."""
_RETRY_SECONDS = 0.02
"""Pause before the next attempt to reach a meeting point that does not answer."""


class Meeting:
    """One rank's part in the meeting of one generation.

    Everything that may take long is waited for here, where the wait can be called off.
    """

    def __init__(
        self, generation: Generation, rank: int, called_off: Callable[[], bool], protocol: int = PROTOCOL
    ) -> None:
        """Raises :class:`elastrain.elastic.comm.handshake.Unauthenticated` if the generation has no secret."""
        self._generation, self._identity = generation, Identity.of(generation, rank)
        self._called_off, self._protocol = called_off, protocol

    @raises_peer_lost
    def exchange(self, mine: Mapping[str, str]) -> dict[str, str]:
        """Send ``mine``, and return the values of all ranks, by key, when all have come.

        Raises :class:`CalledOff`, and :class:`PeerLost` naming the workers that have not come, or the meeting point
        that does not answer.
        """
        end = time.monotonic() + MEETING_SECONDS
        while True:
            try:
                with self._reach(end) as connection:
                    answer = self._ask(connection, mine, end)
            except OSError as e:  # not there yet, or gone; a newer generation shows which member is lost
                if not blames_peer(e):
                    raise
                self._check(end, e)
                time.sleep(_RETRY_SECONDS)
                continue
            if "values" in answer:
                return dict(answer["values"])
            workers = ", ".join(self._worker_of(rank) for rank in answer["missing"])
            raise TimeoutError(
                f"generation {self._generation.number}: no rank of {workers} has come within {MEETING_SECONDS:g} s; "
                "do all workers run the same version of elastrain?"
            )

    @contextmanager
    def _reach(self, end: float) -> Iterator[socket.socket]:
        """A connection to the meeting point, both of whose ends have proven who they are. Raises ``OSError``."""
        at = self._generation.store
        assert at is not None, "an empty generation has no meeting point"
        family, kind, protocol, _, address = socket.getaddrinfo(*at, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as connection:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the proof must not wait for 40 ms
            Patience(min(end, time.monotonic() + _REACH_SECONDS), self._called_off).connect(connection, address)
            hello = self._identity.to(0, handshake.MEETING, self._protocol)
            patience = Patience(min(end, time.monotonic() + 2 * handshake.HELLO_SECONDS), self._called_off)
            handshake.call(connection, hello, self._identity.key, patience.receive)
            yield connection

    def _ask(self, connection: socket.socket, mine: Mapping[str, str], end: float) -> dict[str, Any]:
        connection.sendall(framed({"timeout": max(0.0, end - time.monotonic()), "values": dict(mine)}))
        patience = Patience(end + 1.0, self._called_off)  # at ``end`` the answer names the missing ranks
        length = int.from_bytes(patience.receive(connection, bytearray(LENGTH_BYTES)), "big")
        if length > MAX_REQUEST * (1 + self._generation.world_size):
            raise ConnectionError(f"the meeting point announces an answer of {length} bytes")
        answer: dict[str, Any] = json.loads(patience.receive(connection, bytearray(length)))
        return answer

    def _check(self, end: float, error: OSError | None) -> None:
        """Raise if the wait was called off, or is over."""
        if self._called_off():
            raise CalledOff
        if time.monotonic() > end:
            address, port = self._generation.store or ("", 0)
            host = self._generation.first.worker if self._generation.first else ""
            raise TimeoutError(
                f"generation {self._generation.number}: the meeting point at {address}:{port} ({host}) "
                f"does not answer: {error or 'no data'}"
            )

    def _worker_of(self, rank: int) -> str:
        members = (m for m in self._generation.members if m.rank_offset <= rank < m.rank_offset + m.slots)
        return next((m.worker for m in members), f"rank {rank}")
