"""Serves the page over HTTP, by ``GET`` only. The content includes text of other users' jobs, so every answer forbids
the browser to execute any of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime
from http import HTTPStatus

import structlog
from aiohttp import web

from elastrain_cli.client import ClusterError
from elastrain_dashboard import assets, login
from elastrain_dashboard.access import REVIEW_SECONDS, Guard, View
from elastrain_dashboard.board import OVERVIEW, Board
from elastrain_dashboard.login import VIEW
from elastrain_dashboard.stream import TooMany, encoded
from elastrain_resource.serving import SECONDS

TICK_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
"""The page treats a stream as dead after three silent intervals."""
_AGAIN_SECONDS = 30

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
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
    hosts: Collection[str] = (),
    guard: Guard | None = None,
    tick_seconds: float = TICK_SECONDS,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> web.Application:
    """An application that follows the API server while it runs.

    ``key``: required in the first address (``?key=``) and later in a cookie. ``guard``: users of the cluster log in,
    and each sees what its rights allow; None: no users. ``hosts``: names that the application answers for, beside
    ``localhost`` and all addresses.
    """
    page = _Page(board, now, heartbeat_seconds, guard)
    middlewares = [login.answers_for(hosts)]
    middlewares += [login.asks_for(key)] if key else []
    middlewares += [login.authenticates(guard)] if guard else []
    app = web.Application(middlewares=middlewares)
    if guard:
        app.add_routes(login.routes(guard, page.login))
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


class _Page:
    """The handlers of the page."""

    def __init__(self, board: Board, now: Clock, heartbeat_seconds: float, guard: Guard | None) -> None:
        self._board, self._guard = board, guard
        self._now = now
        self._heartbeat_seconds = heartbeat_seconds
        self._files = assets.load()

    async def index(self, request: web.Request) -> web.Response:
        return self._files["index.html"].answer(request)

    async def login(self, request: web.Request) -> web.Response:
        return self._files["login.html"].answer(request)

    async def static(self, request: web.Request) -> web.Response:
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound(text="no such file\n")
        return file.answer(request)

    async def healthz(self, _: web.Request) -> web.Response:
        """Reports a running process. The page shows an unreachable API server; a restart would not help."""
        return web.Response(text="ok\n")

    async def jobs(self, request: web.Request) -> web.Response:
        view = request[VIEW]
        health = self._board.health(self._now(), view)
        del health["now"]  # otherwise every answer would differ
        return assets.of_json({"health": health, "jobs": self._board.rows(view)}).answer(request)

    async def job(self, request: web.Request) -> web.Response:
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        found = self._board.job(key, figures=True) if request[VIEW].sees(key) else None
        if found is None:
            return assets.of_json({"error": f"no job {key}"}).answer(request, HTTPStatus.NOT_FOUND)
        return assets.of_json(found).answer(request)

    async def accelerators(self, request: web.Request) -> web.Response:
        return assets.of_json(self._board.devices(request[VIEW])).answer(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """``?job=namespace/name``, or the list: the complete state once, then changes, until the browser disconnects.

        For an absent job: only the health of the data, and the job once it appears.
        """
        topic, view = request.query.get("job", OVERVIEW), request[VIEW]
        if topic != OVERVIEW and not view.sees(topic):
            raise web.HTTPForbidden(text=f"you may not list jobs, pods and events in the namespace of {topic}\n")
        try:
            with self._board.hub.listen(topic, view) as queue:
                return await self._streamed(request, queue, self._first(topic, view))
        except TooMany:
            headers = {"Retry-After": str(_AGAIN_SECONDS)}
            raise web.HTTPServiceUnavailable(text="too many browsers use this dashboard\n", headers=headers) from None

    async def _streamed(
        self, request: web.Request, queue: asyncio.Queue[bytes | None], first: bytes
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        due = time.monotonic() + REVIEW_SECONDS
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the browser disconnected
            await response.write(first)
            while (message := await self._next(queue)) is not None:
                if time.monotonic() >= due:
                    if not await self._sees_the_same(request):
                        break  # the browser connects again, or logs in
                    due = time.monotonic() + REVIEW_SECONDS
                async with asyncio.timeout(SECONDS):  # a browser that does not read has no place for ever
                    await response.write(message)
        return response

    async def _sees_the_same(self, request: web.Request) -> bool:
        """Whether the user's token and rights are as at the start of its stream; True while that is unknown."""
        try:
            return self._guard is None or await login.view_of(request, self._guard) == request[VIEW]
        except ClusterError:
            return True

    def _first(self, topic: str, view: View) -> bytes:
        now = self._now()
        health = encoded("health", self._board.health(now, view))
        if topic == OVERVIEW:
            rows = {"now": now.isoformat(), "rows": self._board.rows(view), "all": True}
            return encoded("jobs", rows) + encoded("accelerators", self._board.devices(view)) + health
        job = self._board.job(topic, figures=True)
        return (encoded("job", {"now": now.isoformat(), "job": job}) if job else b"") + health

    async def _next(self, queue: asyncio.Queue[bytes | None]) -> bytes | None:
        try:
            return await asyncio.wait_for(queue.get(), self._heartbeat_seconds)
        except TimeoutError:
            return encoded("heartbeat", {"now": self._now().isoformat()})
