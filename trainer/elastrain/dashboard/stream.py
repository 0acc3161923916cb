"""Server-sent events for many browsers: each message is encoded once, and nobody who is slow holds the others up."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

MOST_BROWSERS = 100
"""Streams at the same time; more are told to come back."""
MOST_WAITING = 32
"""Messages that a browser may be behind; then its stream ends, and it begins again with the whole picture."""


class TooMany(Exception):
    """All streams are taken."""


class Hub:
    """Who listens to which topic. Lives in one event loop."""

    def __init__(self) -> None:
        self._queues: dict[str, list[asyncio.Queue[bytes | None]]] = {}

    @property
    def listeners(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def topics(self) -> list[str]:
        """That somebody listens to."""
        return list(self._queues)

    @contextlib.contextmanager
    def listen(self, topic: str) -> Iterator[asyncio.Queue[bytes | None]]:
        """A queue of encoded messages; None: the stream is to end. Raises :class:`TooMany`."""
        if self.listeners >= MOST_BROWSERS:
            raise TooMany
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        self._queues.setdefault(topic, []).append(queue)
        try:
            yield queue
        finally:
            others = self._queues.get(topic, [])
            if queue in others:
                others.remove(queue)
            if not others:
                self._queues.pop(topic, None)

    def send(self, topic: str, event: str, data: Any) -> None:
        """To all who listen to ``topic``."""
        queues = self._queues.get(topic)
        if queues:
            message = encoded(event, data)
            for queue in queues:
                _put(queue, message)

    def send_all(self, event: str, data: Any) -> None:
        """To everybody."""
        for topic in self.topics:
            self.send(topic, event, data)

    def end(self) -> None:
        """End all streams."""
        for queues in self._queues.values():
            for queue in queues:
                _end(queue)


def encoded(event: str, data: Any) -> bytes:
    """A message as the browser's EventSource reads it. JSON has no raw newline in it."""
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
