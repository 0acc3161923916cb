"""Server-sent events for many browsers: each message is encoded once, and a slow browser does not delay the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from elastrain_dashboard.access import EVERYTHING, View

MOST_BROWSERS = 100
"""Largest number of concurrent streams; the server refuses more."""
MOST_WAITING = 32
"""Largest backlog of a browser; beyond it the stream ends, and the browser restarts with the complete state."""


class TooMany(Exception):
    """All streams are in use."""


class Hub:
    """The listeners of each topic. Use from one event loop."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, View], list[asyncio.Queue[bytes | None]]] = {}

    @property
    def listeners(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def topics(self) -> list[str]:
        """Topics with at least one listener."""
        return list(dict.fromkeys(topic for topic, _ in self._queues))

    def views(self, topic: str) -> list[View]:
        """What the listeners of a topic may see."""
        return [view for of, view in self._queues if of == topic]

    @contextlib.contextmanager
    def listen(self, topic: str, view: View = EVERYTHING) -> Iterator[asyncio.Queue[bytes | None]]:
        """A queue of encoded messages; None ends the stream. Raises :class:`TooMany`."""
        key = topic, view
        if self.listeners >= MOST_BROWSERS:
            raise TooMany
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        self._queues.setdefault(key, []).append(queue)
        try:
            yield queue
        finally:
            others = self._queues.get(key, [])
            if queue in others:
                others.remove(queue)
            if not others:
                self._queues.pop(key, None)

    def send(self, topic: str, view: View, event: str, data: Any) -> None:
        """Send to all listeners of ``topic`` with this view."""
        queues = self._queues.get((topic, view))
        if queues:
            message = encoded(event, data)
            for queue in queues:
                _put(queue, message)

    def end(self) -> None:
        """End all streams."""
        for queues in self._queues.values():
            for queue in queues:
                _end(queue)


def encoded(event: str, data: Any) -> bytes:
    """A message in the format of the browser's EventSource. JSON contains no raw newline."""
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'), allow_nan=False)}\n\n".encode()


def _put(queue: asyncio.Queue[bytes | None], message: bytes) -> None:
    try:
        queue.put_nowait(message)
    except asyncio.QueueFull:
        _end(queue)


def _end(queue: asyncio.Queue[bytes | None]) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)
