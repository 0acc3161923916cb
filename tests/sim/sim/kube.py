"""The API server as an operator's client shows it: the calls of ``elastrain_operator.kube.client`` and ``leases``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from elastrain.api import names
from elastrain_operator.kube.client import ApiError, Tenure
from sim.apiserver import PLACE, ApiServer, Body, merged
from sim.loop import Loop
from sim.network import Network, Refused, Stream
from sim.process import Process

SECONDS = 10.0
RETRY_SECONDS = 1.0
GONE = 410


class Kube:
    def __init__(
        self,
        api: ApiServer,
        network: Network,
        process: Process,
        loop: Loop,
        tenure: Tenure | None,
        lag: Callable[[], float] | None = None,
    ) -> None:
        """``lag``: seconds by which a watch is late; None: as any message."""
        self._api, self._network, self._process, self._loop = api, network, process, loop
        self._tenure, self._lag = tenure, lag

    # ---- jobs and pods -----------------------------------------------------------------------------------------------
    async def get_job(self, namespace: str, name: str) -> Body | None:
        return await self._call("read job", lambda: self._api.get("jobs", name))

    async def patch_status(
        self, namespace: str, name: str, status: Mapping[str, Any], version: str | None = None
    ) -> str | None:
        def write() -> str:
            body = self._api.replace(
                "jobs", name, lambda b: {**b, "status": merged(b.get("status", {}), dict(status))}, version
            )
            return str(body["metadata"]["resourceVersion"])

        return await self._write("write the status", write)

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        await self._write("delete job", lambda: self._api.delete("jobs", name, uid))

    async def get_pod(self, namespace: str, name: str) -> Body | None:
        return await self._call("read pod", lambda: self._api.get("pods", name))

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any], *, strict: bool = True) -> Body:
        def write() -> Body:
            self._api.admit("pods")
            return self._api.create("pods", dict(manifest))

        return await self._write("create pod", write)

    async def annotate_pod(self, namespace: str, name: str, uid: str, values: Mapping[str, str | None]) -> None:
        def change(body: Body) -> Body:
            before = body["metadata"].get("annotations") or {}
            meta = {**body["metadata"], "annotations": merged(before, dict(values))}
            return body if body["metadata"]["uid"] != uid else {**body, "metadata": meta}

        try:
            await self._write("annotate pod", lambda: self._api.replace("pods", name, change))
        except ApiError as error:
            if error.code != 404:
                raise

    async def try_pod(self, namespace: str, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._call("admit pod", lambda: self._api.admits(dict(manifest)))
        return manifest

    async def delete_pod(self, namespace: str, name: str, uid: str, version: str | None = None) -> None:
        await self._write("delete pod", lambda: self._api.delete("pods", name, uid, version))

    async def apply(self, path: str, manifest: Mapping[str, Any]) -> str:
        """At once: what stands beside the pods takes no part in what the other messages of a seed meet."""
        if manifest["kind"] == names.SET_KIND:
            self._reached("write the set of workers")
        else:
            self._budget({int(n) for n in manifest["spec"]["selector"]["matchExpressions"][0]["values"]})
        return f"uid-of-{manifest['metadata']['name']}"

    async def remove(self, path: str, what: str) -> None:
        self._budget(set())

    def _budget(self, ordinals: set[int]) -> None:
        self._reached("write the budget")
        self._api.budget = ordinals

    def _reached(self, what: str) -> None:
        if not self._api.up or self._network.is_cut(self._process.place, PLACE):
            raise ApiError(what, 0, "Unreachable", "connection refused")

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """Events are for people: nothing here reads them."""
        await self._write("record an event", lambda: self._api.admit("events"))

    async def patch_event(self, namespace: str, name: str, change: Mapping[str, Any]) -> None:
        await self._write("count an event", lambda: self._api.admit("events"))

    # ---- lists and watches -------------------------------------------------------------------------------------------
    async def list_pages(self, path: str, what: str, query: Mapping[str, str]) -> AsyncIterator[tuple[list[Body], str]]:
        if path.endswith((names.SET_PLURAL, "poddisruptionbudgets")):  # none: each set is written again
            self._reached(what)
            yield [], ""
            return
        kind = _kind(path)
        yield await self._call(what, lambda: self._api.list(kind))

    async def uids(self, path: str, what: str, query: Mapping[str, str]) -> set[str]:
        items, _ = await self._call(what, lambda: self._api.list(_kind(path)))
        return {body["metadata"]["uid"] for body in items}

    async def watch_as_kopf(self, path: str, what: str, on_event: Callable[[str | None, Body], None]) -> None:
        """kopf's list and watch: after 410 Gone it lists anew and reports no deletion of what the list lacks."""
        version = ""
        while True:
            try:
                if not version:
                    async for items, listed in self.list_pages(path, f"list {what}", {}):
                        for body in items:
                            on_event(None, body)
                        version = listed
                async for event in self.changes(path, f"watch {what}", {"resourceVersion": version}):
                    version = event["object"]["metadata"]["resourceVersion"]
                    on_event(event["type"], event["object"])
            except ApiError as error:
                if error.code == GONE:
                    version = ""
                await asyncio.sleep(RETRY_SECONDS)

    def changes(self, path: str, what: str, query: Mapping[str, str]) -> Changes:
        return Changes(self, path, what, query)

    # ---- leases ------------------------------------------------------------------------------------------------------
    async def get(self, lease: Any, seconds: float) -> Body | None:
        return await self._call("read lease", lambda: self._api.get("leases", lease.name), seconds)

    async def create(self, lease: Any, body: Body, seconds: float) -> Body:
        return await self._call("create lease", lambda: self._api.create("leases", body), seconds)

    async def replace(self, lease: Any, body: Body, seconds: float) -> Body:
        version = body["metadata"].get("resourceVersion")

        def write() -> Body:
            return self._api.replace("leases", lease.name, lambda b: {**b, "spec": body["spec"]}, version)

        return await self._call("renew lease", write, seconds)

    # ---- inside ------------------------------------------------------------------------------------------------------
    async def _write(self, what: str, request: Callable[[], Any]) -> Any:
        seconds = SECONDS if self._tenure is None else min(SECONDS, self._tenure.seconds_left(what))
        return await self._call(what, request, seconds)

    async def _call(self, what: str, request: Callable[[], Any], seconds: float = SECONDS) -> Any:
        future = self._loop.create_future()

        def failed(error: Exception) -> None:
            lost = ApiError(what, 0, "Unreachable", str(error)) if isinstance(error, Refused) else error
            self._loop.settle(future, None, lost)

        def answered(value: Any) -> None:
            self._loop.settle(future, value, None)

        def asked() -> Any:
            if self._api.forbids and not what.endswith("lease"):
                raise ApiError(what, 403, "Forbidden", f"{what} is forbidden: no role permits it")
            return request()

        self._network.call(self._process, PLACE, asked, answered, failed, seconds)
        return await future


class Changes:
    """The events of a watch. Not a generator: a process dies in the middle of everything, and a generator that waits
    cannot be closed then."""

    def __init__(self, kube: Kube, path: str, what: str, query: Mapping[str, str]) -> None:
        """With ``timeoutSeconds`` in the query the API server ends the watch after them."""
        self._kube, self._path, self._what, self._query = kube, path, what, query
        self._waiting: deque[Body] = deque()
        self._news = asyncio.Event()
        self._stream: Stream | None = None
        self._broken = self._over = False

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> Body:
        if self._stream is None:
            await self._begin()
        while not self._waiting:
            if self._broken:
                raise ApiError(self._what, 0, "Unreachable", "the connection ended")
            if self._over:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def _begin(self) -> None:
        kube, version = self._kube, self._query["resourceVersion"]
        if "timeoutSeconds" in self._query:
            kube._loop.call_later(float(self._query["timeoutSeconds"]), self._end, False)
        stream = self._stream = Stream(
            kube._network, PLACE, kube._process, self._take, lambda: self._end(True), kube._lag
        )
        try:
            await kube._call(self._what, lambda: kube._api.watch(_kind(self._path), version, stream))
        except ApiError:
            stream.close()
            raise

    def _take(self, event: Body) -> None:
        self._waiting.append(event)
        self._news.set()

    def _end(self, broken: bool) -> None:
        self._broken, self._over = self._broken or broken, True
        self._news.set()


def _kind(path: str) -> str:
    return "pods" if path.endswith("/pods") else "jobs"
