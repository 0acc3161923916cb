"""A fake API server for the operator's watches: discovery, lists and watches of jobs and worker pods."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from aiohttp import web

from elastrain.api import names

GROUP = names.API_VERSION
VERBS = ["get", "list", "watch", "patch"]


class WatchedApi:
    """``objects``: the lists by plural. Runs in a thread, since kopf waits at its end for all tasks of its loop."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"pods": {}, names.PLURAL: {}}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.refusals: list[int] = []
        """Codes with which the next lists are answered."""
        self.page: str | None = None
        """What a proxy answers instead of the API server to everything but discovery, with code 200; None: no proxy."""
        self._streams: dict[str, list[asyncio.Queue[dict[str, Any] | None]]] = {}
        self._version = 10
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> str:
        """Returns the address."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, self._port = self._runner.addresses[0]
        return f"http://{host}:{self._port}"

    def down(self) -> None:
        """Close all connections and the port."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    def up(self) -> None:
        """Listen again, on the same port."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stop(self) -> None:
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def put(self, plural: str, body: dict[str, Any]) -> None:
        """Create or change an object; watches show it."""
        uid = body["metadata"]["uid"]
        kind = "MODIFIED" if uid in self.objects[plural] else "ADDED"
        body = self.objects[plural][uid] = self._versioned(body)
        self._show(plural, kind, body)

    def delete(self, plural: str, uid: str, *, shown: bool = True) -> None:
        """Delete an object; ``shown``: watches report it."""
        body = self.objects[plural].pop(uid)
        if shown:
            self._show(plural, "DELETED", self._versioned(body))

    def forget_history(self) -> None:
        """End all watches with 410 Gone."""
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        for plural in list(self._streams):
            self._show(plural, "ERROR", gone)

    def end_watches(self) -> None:
        """Close all watches, as the API server does from time to time."""
        for queues in self._streams.values():
            for queue in queues:
                self._loop.call_soon_threadsafe(queue.put_nowait, None)

    def lists(self, plural: str) -> int:
        return sum(path.endswith(plural) and "watch" not in query for _, path, query in self.requests)

    def watches(self, plural: str) -> int:
        return sum(path.endswith(plural) and "watch" in query for _, path, query in self.requests)

    def is_watched(self, plural: str) -> bool:
        return bool(self._streams.get(plural))

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _versioned(self, body: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        return {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}

    def _show(self, plural: str, kind: str, body: dict[str, Any]) -> None:
        for queue in self._streams.get(plural, []):
            self._loop.call_soon_threadsafe(queue.put_nowait, {"type": kind, "object": body})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.requests.append((request.method, path, query))
        found = _discovery(path)
        if found is not None:
            return web.json_response(found)
        if self.page is not None:
            return web.Response(text=self.page, content_type="text/html")
        plural, _, name = path.removeprefix("/api/v1/namespaces/default/").partition("/")
        if name and plural == "pods":
            found = next((b for b in self.objects["pods"].values() if b["metadata"]["name"] == name), None)
            return web.json_response(found or {"kind": "Status", "code": 404}, status=200 if found else 404)
        plural = path.rsplit("/", 1)[-1]
        if "watch" in query:
            return await self._stream(request, plural)
        if self.refusals:
            code = self.refusals.pop(0)
            return web.json_response({"kind": "Status", "code": code, "message": "refused by the test"}, status=code)
        items = list(self.objects[plural].values())
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _stream(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._streams.setdefault(plural, []).append(queue)
        try:
            while (event := await queue.get()) is not None:
                await response.write(web.json_response(event).body + b"\n")
        finally:
            self._streams[plural].remove(queue)
        return response


def _discovery(path: str) -> dict[str, Any] | None:
    version = {"groupVersion": GROUP, "version": names.VERSION}
    pods = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": VERBS}
    jobs = {"name": names.PLURAL, "singularName": "", "namespaced": True, "kind": names.KIND, "verbs": VERBS}
    namespaces = {"name": "namespaces", "singularName": "", "namespaced": False, "kind": "Namespace", "verbs": VERBS}
    found: dict[str, dict[str, Any]] = {
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [{"name": names.GROUP, "versions": [version], "preferredVersion": version}]},
        "/api/v1": {"resources": [pods, namespaces]},
        f"/apis/{GROUP}": {"resources": [jobs]},
    }
    return found.get(path)
