"""An event loop in a thread of its own: what runs there goes on while the process's main loop is busy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_SECONDS = 5.0
HEARTBEAT_SECONDS = 1.0


class LoopThread:
    """The second loop. All methods but :meth:`submit` are called in the main loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``coroutine`` there. May be called in any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of ``coroutine``, which runs there; it is cancelled with the caller."""
        return await asyncio.wrap_future(self.submit(coroutine))

    async def close(self) -> None:
        """End the loop. What still runs there is dropped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


class Heartbeat:
    """Whether the main loop runs: it beats there, and any thread may ask."""

    def __init__(self) -> None:
        self._beaten = time.monotonic()

    async def beat(self) -> None:
        """Until cancelled."""
        while True:
            self._beaten = time.monotonic()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def silence(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._beaten
