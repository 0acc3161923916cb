"""The meeting point of a generation: a small server that sends the values of all ranks to every rank.

torch's TCPStore would serve, except for three properties that slow a rescale down. Each of its clients looks up the
*name* of the address that it connects to (a lost DNS answer takes 5 s). A rank that waits in it cannot be called off.
And N ranks fetch N values one by one. Here each rank sends one line and receives one line.

A request and its answer are one JSON object each::

    {"protocol": 11, "generation": 7, "rank": 0, "world_size": 3, "timeout": 60.0, "values": {"key": "value", ...}}
    {"values": {...of all ranks...}}    or    {"missing": [2]} after ``timeout`` seconds

Ranks of different protocol versions do not meet: after a change of the image, a job trains on with the ranks that fit.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

MAX_LINE = 64 * 2**20
"""Bytes of one request or answer: some hundred bytes for each pair of ranks."""
KEPT_GENERATIONS = 16
"""Meetings that are kept for ranks whose connection broke before they had received their answer."""
START_TIMEOUT = 10.0
"""Bound, in seconds, of starting the server's thread."""


@dataclass(slots=True)
class _Gathering:
    """The ranks that have come, with their values."""

    values: dict[int, dict[str, str]] = field(default_factory=dict)
    """By rank."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class MeetingPoint:
    """Serves meetings on a free port of ``address`` until it is closed.

    A member keeps one for its whole life and publishes its port. The address is therefore known before any generation
    that uses it, and no port has to be agreed on during a rescale.
    """

    def __init__(self, address: str) -> None:
        """Raises ``OSError`` if ``address`` is not one of this host's."""
        self.port = 0
        self._gatherings: dict[tuple[int, int, int], _Gathering] = defaultdict(_Gathering)
        self._loop = asyncio.new_event_loop()
        self._failed: OSError | None = None
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(address,), name="elastrain-meeting", daemon=True)
        self._thread.start()
        if not self._listening.wait(START_TIMEOUT):
            raise TimeoutError(f"the meeting point on {address} does not listen after {START_TIMEOUT:g} s")
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Stop serving, and close the connections of waiting ranks. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------
    def _run(self, address: str) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(address))

    async def _serve(self, address: str) -> None:
        try:
            server = await asyncio.start_server(self._answer, address, 0, limit=MAX_LINE)
        except OSError as e:
            self._failed = e
            self._listening.set()
            return
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        async with server:
            await self._stop.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            answer = await self._meet(json.loads(line), reader)
            if answer is not None:
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # a rank that is gone, or a client of another protocol: no answer
        finally:
            writer.close()

    async def _meet(self, request: dict[str, Any], reader: asyncio.StreamReader) -> dict[str, Any] | None:
        """The answer; None if the rank closed its connection before: then it has not come."""
        rank, world_size, timeout = int(request["rank"]), int(request["world_size"]), float(request["timeout"])
        gathering = self._gathering(int(request["protocol"]), int(request["generation"]), world_size)
        values = dict(request["values"])
        gathering.values[rank] = values
        if len(gathering.values) == world_size:
            gathering.complete.set()
        complete = asyncio.ensure_future(gathering.complete.wait())
        hung_up = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({complete, hung_up}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        complete.cancel()
        hung_up.cancel()
        if gathering.complete.is_set():
            return {"values": {key: value for of_rank in gathering.values.values() for key, value in of_rank.items()}}
        missing = sorted(set(range(world_size)) - gathering.values.keys())
        if gathering.values.get(rank) is values:  # unless the rank has come again meanwhile
            del gathering.values[rank]
        return None if hung_up.done() else {"missing": missing}

    def _gathering(self, protocol: int, generation: int, world_size: int) -> _Gathering:
        gathering = self._gatherings[protocol, generation, world_size]
        newest = max(number for _, number, _ in self._gatherings)
        for key in [k for k in self._gatherings if k[1] <= newest - KEPT_GENERATIONS]:
            del self._gatherings[key]
        return gathering
