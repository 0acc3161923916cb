"""What the ranks of a generation bring each other when they meet, and the same for gloo once they are connected."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from elastrain.api.records import Generation
from elastrain.elastic.comm.meeting import MAX_LINE

PROTOCOL = 9
"""Version of what ranks say to each other inside a generation (table, header, pieces, control vector)."""
MEETING_TIMEOUT = 60.0
"""Seconds until a rank gives up on peers that do not come. Those that are lost show sooner, by a newer generation."""
_LOOK_SECONDS = 0.05
"""How often a wait is interrupted to see whether it was called off."""
_RETRY_SECONDS = 0.02
"""Pause before another attempt to reach a meeting point that does not answer."""


class CalledOff(Exception):
    """The wait was ended by the caller's own wish."""


class ExchangeStore(dist.Store):
    """What ``ProcessGroupGloo`` needs of a store: a rank sets its own keys first and then reads those of its peers.

    The first read of a key that this rank has not set makes the exchange (:meth:`_exchange`), in which all bring what
    they have set until then. What is set later stays local. Reading raises ``KeyError`` for a key that nobody has
    brought, and what the exchange raises.
    """

    def __init__(self, number: int) -> None:
        """Of the generation with this number."""
        super().__init__()
        self._number = number
        self._values: dict[str, bytes] = {}
        self._met = False

    def set(self, key: str, value: str | bytes) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def wait(self, keys: list[str], _timeout: timedelta | None = None) -> None:
        if any(key not in self._values for key in keys):
            self.meet()
        if missing := [key for key in keys if key not in self._values]:
            raise KeyError(f"generation {self._number}: no rank has set {', '.join(missing)}")

    def meet(self) -> None:
        """Make the exchange, if it has not been made."""
        if not self._met:
            self._values.update(self._exchange())
            self._met = True

    def _exchange(self) -> dict[str, bytes]:
        """What all ranks have brought."""
        raise NotImplementedError


class PeersStore(ExchangeStore):
    """Filled over the connections that the ranks have to each other already."""

    def __init__(self, number: int, gather: Callable[[bytes], list[bytes]]) -> None:
        """``gather``: what each rank gives, to all of them, in their order."""
        super().__init__(number)
        self._gather = gather

    def _exchange(self) -> dict[str, bytes]:
        return {key: value for values in self._brought() for key, value in values.items()}

    def _brought(self) -> list[dict[str, bytes]]:
        """What each rank has brought, in their order."""
        texts = self._gather(json.dumps(_to_text(self._values)).encode())
        return [_from_text(json.loads(text)) for text in texts]


class MeetingStore(ExchangeStore):
    """Filled by one exchange at the meeting point of ``generation``: everything that may take long is waited for here,
    where it can be called off.

    Reading also raises :class:`CalledOff`, and ``TimeoutError`` naming who has not come.
    """

    def __init__(
        self, generation: Generation, rank: int, called_off: Callable[[], bool], protocol: int = PROTOCOL
    ) -> None:
        super().__init__(generation.number)
        self._protocol = protocol
        self._generation, self._rank, self._called_off = generation, rank, called_off

    def _exchange(self) -> dict[str, bytes]:
        end = time.monotonic() + MEETING_TIMEOUT
        while True:
            try:
                with self._reach(end) as connection:
                    answer = self._ask(connection, end)
            except OSError as e:  # not there yet, or gone; who it was shows in a newer generation soon
                self._may_go_on(end, e)
                time.sleep(_RETRY_SECONDS)
                continue
            if "values" in answer:
                return _from_text(answer["values"])
            workers = ", ".join(self._worker_of(rank) for rank in answer["missing"])
            raise TimeoutError(
                f"generation {self._generation.number}: no rank of {workers} has come within {MEETING_TIMEOUT:g} s; "
                "do all workers run the same version of elastrain?"
            )

    @contextmanager
    def _reach(self, end: float) -> Iterator[socket.socket]:
        """A connection to the meeting point. Raises ``OSError`` if there is none."""
        at = self._generation.store
        assert at is not None, "an empty generation has no store"
        family, kind, protocol, _, address = socket.getaddrinfo(*at, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(min(_LOOK_SECONDS * 20, max(_LOOK_SECONDS, end - time.monotonic())))
            connection.connect(address)
            connection.settimeout(_LOOK_SECONDS)
            yield connection

    def _ask(self, connection: socket.socket, end: float) -> dict[str, Any]:
        request = {
            "protocol": self._protocol,
            "generation": self._generation.number,
            "rank": self._rank,
            "world_size": self._generation.world_size,
            "timeout": max(0.0, end - time.monotonic()),
            "values": _to_text(self._values),
        }
        connection.sendall(json.dumps(request).encode() + b"\n")
        received = bytearray()
        while not received.endswith(b"\n"):
            try:
                chunk = connection.recv(1 << 20)
            except TimeoutError:
                self._may_go_on(end + 1.0, None)  # at ``end`` the answer says who is missing
                continue
            if not chunk or len(received) > MAX_LINE:
                raise ConnectionError("the meeting point hung up")
            received += chunk
        answer: dict[str, Any] = json.loads(received)
        return answer

    def _may_go_on(self, end: float, error: OSError | None) -> None:
        if self._called_off():
            raise CalledOff
        if time.monotonic() > end:
            address, port = self._generation.store or ("", 0)
            host = self._generation.first.worker if self._generation.first else ""
            raise TimeoutError(
                f"generation {self._generation.number}: the meeting point at {address}:{port} ({host}) "
                f"does not answer: {error or 'silence'}"
            )

    def _worker_of(self, rank: int) -> str:
        members = (m for m in self._generation.members if m.rank_offset <= rank < m.rank_offset + m.slots)
        return next((m.worker for m in members), f"rank {rank}")


def _to_text(values: dict[str, bytes]) -> dict[str, str]:
    """As JSON can carry them."""
    return {key: base64.b64encode(value).decode() for key, value in values.items()}


def _from_text(values: dict[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in values.items()}
