"""``GET /metrics``: in its own thread, so that a scrape of thousands of jobs delays no event.

Plain HTTP without a password: it serves job names and figures only. A service mesh and a NetworkPolicy provide TLS and
access control.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from elastrain import listening
from elastrain_resource.serving import serving

STOP_SECONDS = 5.0


class MetricsServer:
    """Serves a text until it is closed."""

    def __init__(self, text: Callable[[], bytes], port: int, host: str = "") -> None:
        """``text`` is called for each scrape, in the server's thread. Port 0: any free port, see ``port``.

        ``host``: where to listen; empty: on all addresses.

        Raises ``OSError`` if the port is taken.
        """
        self._text = text
        listener = listening.on(host, port) if host else listening.everywhere(port)
        self.port = int(listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; a scrape in progress gets a moment to finish."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(STOP_SECONDS)

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        app = web.Application()
        app.add_routes([web.get("/metrics", self._answer)])
        async with serving(app, listener):
            await self._closed.wait()

    async def _answer(self, _: web.Request) -> web.Response:
        """Uncompressed: compression would take the operator longer than it saves on the network."""
        return web.Response(body=self._text(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
