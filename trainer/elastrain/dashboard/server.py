"""Serves the page over HTTP, by ``GET`` only. The content includes text of other users' jobs, so every answer forbids
the browser to execute any of it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from elastrain.dashboard import assets
from elastrain.dashboard.board import OVERVIEW, Board
from elastrain.dashboard.stream import TooMany, encoded

TICK_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
"""The page treats a stream as dead after three silent intervals."""
_AGAIN_SECONDS = 30

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer."""

Clock = Callable[[], datetime]
log = structlog.get_logger(__name__)


def application(
    board: Board,
    now: Clock,
    *,
    key: str = "",
    tick_seconds: float = TICK_SECONDS,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> web.Application:
    """An application that follows the API server while it runs.

    ``key``: required in the first address (``?key=``) and later in a cookie; empty: no access control.
    """
    page = _Page(board, now, heartbeat_seconds)
    app = web.Application(middlewares=[_asks_for(key)] if key else [])
    app.add_routes(
        [
            web.get("/", page.index),
            web.get("/static/{name}", page.static),
            web.get("/healthz", page.healthz),
            web.get("/api/jobs", page.jobs),
            web.get("/api/jobs/{namespace}/{name}", page.job),
            web.get("/api/accelerators", page.accelerators),
            web.get("/api/stream", page.stream, allow_head=False),
        ]
    )
    app.on_response_prepare.append(_harden)

    async def running(_: web.Application) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(board.run()), asyncio.create_task(_tick(board, now, tick_seconds))]
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def ending(_: web.Application) -> None:
        board.hub.end()

    app.cleanup_ctx.append(running)
    app.on_shutdown.append(ending)
    return app


async def _tick(board: Board, now: Clock, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            board.tick(now())
        except Exception:
            log.exception("a fault of the dashboard; it continues")  # with the last data


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers["Server"] = "elastrain"


def _asks_for(key: str) -> Middleware:
    """Require the key: on a shared machine, other users must not see one user's data."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        cookie = f"elastrain-{request.url.port}"
        if hmac.compare_digest(request.query.get("key", "").encode(), key.encode()):
            response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "./"})
            response.set_cookie(cookie, key, httponly=True, samesite="Lax", path="/")
            return response
        if request.path != "/healthz" and not hmac.compare_digest(
            request.cookies.get(cookie, "").encode(), key.encode()
        ):
            raise web.HTTPForbidden(text="the key is missing: open the address that `elastrain dashboard` printed\n")
        return await handler(request)

    return middleware


class _Page:
    """The handlers of the page."""

    def __init__(self, board: Board, now: Clock, heartbeat_seconds: float) -> None:
        self._board = board
        self._now = now
        self._heartbeat_seconds = heartbeat_seconds
        self._files = assets.load()

    async def index(self, request: web.Request) -> web.Response:
        return self._files["index.html"].answer(request)

    async def static(self, request: web.Request) -> web.Response:
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound(text="no such file\n")
        return file.answer(request)

    async def healthz(self, _: web.Request) -> web.Response:
        """Reports a running process. The page shows an unreachable API server; a restart would not help."""
        return web.Response(text="ok\n")

    async def jobs(self, request: web.Request) -> web.Response:
        health = self._board.health(self._now())
        del health["now"]  # otherwise every answer would differ
        return assets.of_json({"health": health, "jobs": self._board.rows()}).answer(request)

    async def job(self, request: web.Request) -> web.Response:
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        found = self._board.job(key, figures=True)
        if found is None:
            return assets.of_json({"error": f"no job {key}"}).answer(request, HTTPStatus.NOT_FOUND)
        return assets.of_json(found).answer(request)

    async def accelerators(self, request: web.Request) -> web.Response:
        return assets.of_json(self._board.devices()).answer(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """``?job=namespace/name``, or the list: the complete state once, then changes, until the browser disconnects.

        For an absent job: only the health of the data, and the job once it appears.
        """
        topic = request.query.get("job", OVERVIEW)
        try:
            with self._board.hub.listen(topic) as queue:
                return await self._streamed(request, queue, self._first(topic))
        except TooMany:
            headers = {"Retry-After": str(_AGAIN_SECONDS)}
            raise web.HTTPServiceUnavailable(text="too many browsers use this dashboard\n", headers=headers) from None

    async def _streamed(
        self, request: web.Request, queue: asyncio.Queue[bytes | None], first: bytes
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the browser disconnected
            await response.write(first)
            while (message := await self._next(queue)) is not None:
                await response.write(message)
        return response

    def _first(self, topic: str) -> bytes:
        now = self._now()
        health = encoded("health", self._board.health(now))
        if topic == OVERVIEW:
            rows = {"now": now.isoformat(), "rows": self._board.rows(), "all": True}
            return encoded("jobs", rows) + encoded("accelerators", self._board.devices()) + health
        job = self._board.job(topic, figures=True)
        return (encoded("job", {"now": now.isoformat(), "job": job}) if job else b"") + health

    async def _next(self, queue: asyncio.Queue[bytes | None]) -> bytes | None:
        try:
            return await asyncio.wait_for(queue.get(), self._heartbeat_seconds)
        except TimeoutError:
            return encoded("heartbeat", {"now": self._now().isoformat()})
