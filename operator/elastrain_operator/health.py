"""``GET /healthz`` of an operator process, for as long as it lives: also of a stand-by, in which kopf does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from elastrain import listening
from elastrain_resource.serving import serving


@asynccontextmanager
async def answering(port: int, state: Callable[[], Mapping[str, Any]]) -> AsyncIterator[None]:
    """Answers ``{"state": state()}`` on all addresses while the block runs, with code 503 if the state is ``failing``:
    Kubernetes then starts the process again, which costs no training job anything. Raises ``OSError`` if the port is
    taken.

    It runs in the operator's event loop: if that is stuck, the probe fails.
    """

    async def healthz(_: web.Request) -> web.Response:
        shown = dict(state())
        answer = web.json_response({"state": shown}, status=503 if shown.get("failing") else 200)
        answer.force_close()  # an idle connection would be a task that kopf waits for at its end
        return answer

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz)])
    async with serving(app, listening.everywhere(port)):  # the kubelet probes the pod's address
        yield
