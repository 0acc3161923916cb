"""The meeting point of a generation: a small server that sends the values of all ranks to every rank.

torch's TCPStore would serve, except for three properties that slow a rescale down. Each of its clients looks up the
*name* of the address that it connects to (a lost DNS answer takes 5 s). A rank that waits in it cannot be called off.
And N ranks fetch N values one by one. Here each rank sends one line and receives one line.

Both ends first prove that they know the secret of the generation (:mod:`elastrain.elastic.comm.handshake`); the rank
and its generation are those of the proof. A request and its answer are then one JSON object each, behind its length::

    {"timeout": 60.0, "values": {"key/0": "value", ...}}           of rank 0: its keys end with its number
    {"values": {...of all ranks...}}    or    {"missing": [2]} after ``timeout`` seconds

Ranks of different protocol versions do not meet: after a change of the image, a job trains on with the ranks that fit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from elastrain import listening, threads
from elastrain.api.records import Generation
from elastrain.elastic.comm.handshake import (
    HELLO_BYTES,
    HELLO_SECONDS,
    MEETING,
    PROOF_BYTES,
    Challenge,
    Hello,
    Identity,
    Pending,
    Unauthenticated,
)

MAX_REQUEST = 64 * 2**10
"""Bytes of one rank's request, and of its part of an answer."""
LENGTH_BYTES = 4
KEPT_GENERATIONS = 16
"""Meetings that are kept for ranks whose connection broke before they had received their answer."""
START_TIMEOUT = 10.0
"""Bound, in seconds, of starting the server's thread."""
_BUFFER_BYTES = 2**12
"""Of what a client has sent and the server has not read yet, the system's own buffers apart."""


def framed(message: dict[str, Any]) -> bytes:
    """A message as it travels."""
    raw = json.dumps(message).encode()
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


@dataclass(slots=True)
class _Gathering:
    """The ranks of one protocol version that have come, with their values."""

    values: dict[int, dict[str, str]] = field(default_factory=dict)
    """By rank."""
    answer: bytes = b""
    """The values of all ranks as they travel: encoded once, not for each rank."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class _Expected:
    """A generation that meets here."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        """Rank 0's, whose process serves the meeting point."""
        self.gatherings: dict[int, _Gathering] = defaultdict(_Gathering)
        """By protocol."""


class MeetingPoint:
    """Serves meetings on a free port of ``address`` until it is closed.

    A member keeps one for its whole life and publishes its port. The address is therefore known before any generation
    that uses it, and no port has to be agreed on during a rescale.
    """

    def __init__(self, address: str) -> None:
        """Raises ``OSError`` if ``address`` is not one of this host's."""
        self.port = 0
        self._expected: dict[int, _Expected] = {}
        self._more = asyncio.Event()
        """Set, and replaced, when a further generation is expected."""
        self._pending: Pending[asyncio.StreamWriter] = Pending()
        self._loop = asyncio.new_event_loop()
        self._failed: OSError | None = None
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threads.start(self._run, address, name="elastrain-meeting")
        if not self._listening.wait(START_TIMEOUT):
            raise TimeoutError(f"the meeting point on {address} does not listen after {START_TIMEOUT:g} s")
        if self._failed is not None:
            raise self._failed

    def expect(self, generation: Generation) -> None:
        """From now on the ranks of ``generation``, whose first member's process this is, can meet. Any thread.

        Ranks that come before wait for it. Those of a generation without a secret report that themselves.
        """
        with contextlib.suppress(Unauthenticated, RuntimeError):  # no secret; the loop is closed
            expected = _Expected(Identity.of(generation, 0))
            self._loop.call_soon_threadsafe(self._expect, expected)

    def close(self) -> None:
        """Stop serving, and close the connections of waiting ranks. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop is closed: another thread has called this
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------
    def _run(self, address: str) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(address))

    async def _serve(self, address: str) -> None:
        try:
            own = listening.on(address)
            server = await asyncio.start_server(self._answer, sock=own, limit=_BUFFER_BYTES, backlog=listening.BACKLOG)
        except OSError as e:
            self._failed = e
            self._listening.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        async with server:
            await self._stop.wait()

    def _expect(self, expected: _Expected) -> None:
        self._expected.setdefault(expected.identity.generation, expected)
        for number in sorted(self._expected)[:-KEPT_GENERATIONS]:
            del self._expected[number]
        self._more.set()
        self._more = asyncio.Event()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("peername", ("",))[0]
        if (displaced := self._pending.add(writer, host)) is not None:
            displaced.transport.abort()
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello, expected = await self._authenticate(reader, writer)
            self._pending.discard(writer)
            answer = await self._meet(await _request(reader), hello, expected, reader)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # a rank that is gone, a client that proves nothing, or another protocol: no answer
        finally:
            self._pending.discard(writer)
            writer.close()

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Hello, _Expected]:
        """Who the client is. Raises :class:`Unauthenticated` if it does not prove it."""
        hello = Hello.decode(await reader.readexactly(HELLO_BYTES))
        if hello.purpose != MEETING or hello.listener != 0:
            raise Unauthenticated("not a client of the meeting point")
        while (expected := self._expected.get(hello.generation)) is None:  # bounded by the caller
            await self._more.wait()
        if hello.caller >= expected.identity.world_size:
            raise Unauthenticated("no rank of the generation")
        challenge = Challenge(hello, expected.identity.key)
        writer.write(challenge.answer)
        if not challenge.is_met_by(await reader.readexactly(PROOF_BYTES)):
            raise Unauthenticated("a wrong proof")
        return hello, expected

    async def _meet(
        self, request: dict[str, Any], hello: Hello, expected: _Expected, reader: asyncio.StreamReader
    ) -> bytes | None:
        """The answer; None if the rank closed its connection before: then it has not come."""
        rank, world_size = hello.caller, expected.identity.world_size
        timeout, values = float(request["timeout"]), _values(request["values"], rank)
        if not (timeout >= 0 and math.isfinite(timeout)):
            raise ValueError("timeout")
        gathering = expected.gatherings[hello.protocol]
        gathering.values[rank] = values
        if len(gathering.values) == world_size:
            merged = {key: value for of_rank in gathering.values.values() for key, value in of_rank.items()}
            gathering.answer = framed({"values": merged})
            gathering.complete.set()
        complete = asyncio.ensure_future(gathering.complete.wait())
        hung_up = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({complete, hung_up}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        complete.cancel()
        hung_up.cancel()
        if gathering.complete.is_set():
            return gathering.answer
        missing = sorted(set(range(world_size)) - gathering.values.keys())
        if gathering.values.get(rank) is values:  # unless the rank has come again meanwhile
            del gathering.values[rank]
        return None if hung_up.done() else framed({"missing": missing})


async def _request(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Of a rank that has proven who it is. Raises ``ValueError`` if it is too long or no JSON."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > MAX_REQUEST:
        raise ValueError(f"a request of {length} bytes")
    request: dict[str, Any] = json.loads(await reader.readexactly(length))
    return request


def _values(given: Any, rank: int) -> dict[str, str]:
    """Raises ``ValueError`` if they are not this rank's, so that no rank replaces the values of another one."""
    values = dict(given)
    if not all(isinstance(v, str) and k.endswith(f"/{rank}") for k, v in values.items()):
        raise ValueError(f"values that are not of rank {rank}")
    return values
