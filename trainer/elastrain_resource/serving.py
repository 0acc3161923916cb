"""Serves HTTP to clients of which each may be slow, silent or one of very many: operator and dashboard.

A request has a bounded time to arrive, to be answered and to be read. At most :data:`MOST` connections are open: for a
newer one the oldest without a request in progress is closed, so that no client keeps others away by doing nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

SECONDS = 10.0
MOST = 256
STOP_SECONDS = 1.0
"""For requests in progress at the end."""
_TIME = web.RequestKey("time", asyncio.Timeout)


@asynccontextmanager
async def serving(
    app: web.Application, listener: socket.socket, *, seconds: float = SECONDS, most: int = MOST
) -> AsyncIterator[None]:
    """Serve ``app`` while the block runs. ``seconds``: for each request."""
    busy: set[object] = set()

    @web.middleware
    async def in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        busy.add(request.protocol)
        try:
            async with asyncio.timeout(seconds) as request[_TIME]:
                return await handler(request)
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError(f"not answered within {seconds:g} s") from None
        finally:
            busy.discard(request.protocol)
            asyncio.get_running_loop().call_later(seconds, _end_if_unread, transport)

    async def begin(request: web.Request, response: web.StreamResponse) -> None:
        if not isinstance(response, web.Response):  # a stream ends as its handler says
            request[_TIME].reschedule(None)

    app.middlewares.insert(0, in_time)
    app.on_response_prepare.append(begin)
    # The time of an idle connection is also that of a request's head, from the first byte on.
    runner = web.AppRunner(
        app, handle_signals=False, access_log=None, keepalive_timeout=seconds, shutdown_timeout=STOP_SECONDS
    )
    await runner.setup()
    accepting = runner.server
    assert accepting is not None, "after its setup"

    def accepted() -> asyncio.Protocol:
        there = [c for c in accepting.connections if c.transport is not None and not c.transport.is_closing()]
        if len(there) >= most:
            oldest = next((c for c in there if c not in busy), there[0])
            if oldest.transport is not None:
                oldest.transport.abort()
        return accepting()

    server = await asyncio.get_running_loop().create_server(accepted, sock=listener)
    try:
        yield
    finally:
        server.close()
        await runner.cleanup()


def _end_if_unread(transport: asyncio.Transport) -> None:
    """The client has had its time to read the answer. (To close the transport would wait for it.)"""
    if transport.get_write_buffer_size():
        transport.abort()
