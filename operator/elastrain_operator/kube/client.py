"""The operator's requests to the API server, on raw dicts; ``PERMISSIONS`` is the RBAC that they need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import aiohttp
import kopf
import orjson

from elastrain.api import names
from elastrain_operator import clock
from elastrain_operator.kube.access import Access, Tenure
from elastrain_operator.kube.answers import ApiError, NotLeading, decoded, error_of, unreachable
from elastrain_operator.kube.repeats import is_creation_worth_repeating, is_worth_repeating, repeated
from elastrain_operator.metrics.process import count_request
from elastrain_resource.reflector import Pages, pages

__all__ = ["ApiError", "Kube", "NotLeading", "Tenure"]

PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {
    (names.GROUP, names.PLURAL): frozenset({"get", "list", "watch", "delete"}),
    (names.GROUP, f"{names.PLURAL}/status"): frozenset({"patch"}),
    ("", "pods"): frozenset({"get", "list", "watch", "create", "patch", "delete"}),
    ("", "events"): frozenset({"create", "patch"}),
    ("", "secrets"): frozenset({"create", "update"}),
    ("policy", "poddisruptionbudgets"): frozenset({"list", "create", "patch", "delete"}),
    (names.GROUP, names.SET_PLURAL): frozenset({"list", "create", "patch"}),
}
"""(API group, resource) → verbs that the operator uses. All are namespaced; a test compares the chart's role with them.
Secrets are written, never read, and only if jobs have their own credentials; `patch` is excluded, since its response
contains the previous data."""
CAPACITY_PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "nodes"): frozenset({"list", "watch"}),
    ("scheduling.k8s.io", "priorityclasses"): frozenset({"list", "watch"}),
    ("", "resourcequotas"): frozenset({"list", "watch"}),
    ("resource.k8s.io", "resourceslices"): frozenset({"list", "watch"}),
    ("resource.k8s.io", "deviceclasses"): frozenset({"list", "watch"}),
    ("resource.k8s.io", "resourceclaimtemplates"): frozenset({"list", "watch"}),
    ("resource.k8s.io", "resourceclaims"): frozenset({"list", "watch"}),
}
"""Additional verbs for sharing the cluster out; they are cluster-scoped and include the pods of all namespaces."""
CLUSTER_PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {("", "namespaces"): frozenset({"get"})}
"""Verbs for the namespace kube-system alone, whose UID identifies the cluster; see ``process.py``."""
LEASE_PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {
    ("coordination.k8s.io", "leases"): frozenset({"get", "create", "update"}),
}
"""Verbs for the Lease of ``election.py``, in its namespace; `get` and `update` of that Lease only."""

REQUEST_SECONDS = 10.0
"""Seconds for one attempt of a request."""
CREATION_SECONDS = 12.0
"""Seconds for one attempt to create a pod: more than the 10 s after which the API server by default gives up an
admission webhook and names it."""
IN_FLIGHT = 32
"""Concurrent requests. More would only wait in the API server, at the expense of the attempt's time."""
CREATIONS_IN_FLIGHT = 24
"""Of these, creations of pods: a webhook that hangs does not hold up status, deletions and reads."""
JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + JSON
"""Answers to writes contain metadata only: the object itself was just sent."""
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," + JSON
_HEADERS = {
    "Accept-Encoding": "identity",  # within a cluster, compression costs more
    "User-Agent": f"elastrain-operator/{version('elastrain')}",  # in audit logs; up to the slash, in managedFields
}


class Kube:
    """Requests with bounded retries on 429, 5xx and timeouts. Each may raise :class:`ApiError`."""

    def __init__(self, access: Access, tenure: Tenure | None = None) -> None:
        """``tenure``: checked before each write, and bounds it; None: unlimited."""
        self._access = access
        self._tenure = tenure
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._creations = asyncio.Semaphore(CREATIONS_IN_FLIGHT)
        connector = aiohttp.TCPConnector(ssl=access.ssl, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, trust_env=access.trust_env, cookie_jar=aiohttp.DummyCookieJar()
        )

    @classmethod
    async def connect(cls, tenure: Tenure | None = None) -> Kube:
        """By the pod's service account, else by the kubeconfig. Raises ``kopf.LoginError`` if there is neither."""
        return cls(await Access.find(), tenure)

    async def close(self) -> None:
        await self._session.close()

    async def cluster_uid(self) -> str:
        """UID of the namespace kube-system, which a cluster keeps for life."""
        body = await self._call(
            "GET", "/api/v1/namespaces/kube-system", "identify this cluster by its namespace kube-system"
        )
        return str(body["metadata"]["uid"])

    # ---- jobs ------------------------------------------------------------------------------------------------------
    async def get_job(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The job, or None if the API server reports that it does not exist."""
        return await self._get(_job_path(namespace, name), f"read job {namespace}/{name}")

    async def patch_status(
        self, namespace: str, name: str, status: Mapping[str, Any], version: str | None = None
    ) -> str | None:
        """Merge ``status`` into the job's; a null removes a field. Returns the job's new ``resourceVersion``.

        With ``version``, only if that is the job's ``resourceVersion`` (code 409 otherwise).
        """
        path, what = _job_path(namespace, name) + "/status", f"write the status of job {namespace}/{name}"
        body = {"status": status, **({"metadata": {"resourceVersion": version}} if version else {})}
        answer = await self._call("PATCH", path, what, body, content=MERGE, accept=METADATA)
        return str(answer["metadata"]["resourceVersion"])

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this job, and its pods after it; no error if it is gone."""
        await self._delete(_job_path(namespace, name), uid, f"delete job {namespace}/{name}")

    # ---- pods ------------------------------------------------------------------------------------------------------
    async def get_pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The pod, or None if the API server reports that it does not exist."""
        return await self._get(f"{pods_path(namespace)}/{name}", f"read pod {namespace}/{name}")

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create; unknown fields are refused. :func:`elastrain_operator.kube.answers.refused` tells
        refusals apart. Only what passes by itself is repeated here: overload and races, not a webhook that fails.

        Returns ``manifest`` with the new pod's metadata. The watch shows the other fields set by the API server."""
        what = f"create pod {namespace}/{manifest['metadata']['name']}"
        query = {"fieldValidation": "Strict"}
        request = _Call("POST", pods_path(namespace), what, _encoded(manifest), query, JSON, CREATION_SECONDS, METADATA)
        async with self._creations:
            answer = await repeated(lambda: self._attempt(request), is_creation_worth_repeating)
        return {**manifest, "metadata": answer["metadata"]}

    async def annotate_pod(self, namespace: str, name: str, uid: str, values: Mapping[str, str | None]) -> None:
        """Set annotations of exactly this pod (None: remove); no error if it is gone."""
        body = {"metadata": {"uid": uid, "annotations": dict(values)}}
        path, what = f"{pods_path(namespace)}/{name}", f"annotate pod {namespace}/{name}"
        try:
            await self._call("PATCH", path, what, body, content="application/merge-patch+json", accept=METADATA)
        except ApiError as error:
            if error.code not in (404, 409):  # the pod is gone, or its successor has the name
                raise

    async def try_pod(self, namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The pod as it would be admitted: a creation as a dry run, with the same errors."""
        what = f"admit pod {namespace}/{manifest['metadata']['name']}"
        query = {"fieldValidation": "Strict", "dryRun": "All"}
        request = _Call("POST", pods_path(namespace), what, _encoded(manifest), query, JSON, CREATION_SECONDS)
        async with self._creations:
            return await repeated(lambda: self._attempt(request), is_creation_worth_repeating)

    async def delete_pod(self, namespace: str, name: str, uid: str, version: str | None = None) -> None:
        """Request the deletion of exactly this pod, with its own grace period; no error if it is gone.

        With ``version``, only if that is its ``resourceVersion``; no error if it has changed.
        """
        await self._delete(f"{pods_path(namespace)}/{name}", uid, f"delete pod {namespace}/{name}", version)

    # ---- secrets ---------------------------------------------------------------------------------------------------
    async def write_secret(self, namespace: str, manifest: Mapping[str, Any], *, expected: bool) -> None:
        """Create the Secret, or replace the one of that name, which is tried first if it is ``expected`` to exist."""
        path, name = f"/api/v1/namespaces/{namespace}/secrets", manifest["metadata"]["name"]
        create = ("POST", path, f"create secret {namespace}/{name}", manifest)
        replace = ("PUT", f"{path}/{name}", f"replace secret {namespace}/{name}", manifest)
        first, second, otherwise = (replace, create, 404) if expected else (create, replace, 409)
        try:
            await self._call(*first)
        except ApiError as error:
            if error.code != otherwise:
                raise
            await self._call(*second)

    # ---- other APIs ------------------------------------------------------------------------------------------------
    async def call(
        self, method: str, path: str, what: str, body: Mapping[str, Any] | None = None, *, content: str = JSON
    ) -> dict[str, Any]:
        """A request whose path and body another module knows."""
        return await self._call(method, path, what, body, content=content)

    # ---- disruption budgets, sets of workers, gangs ----------------------------------------------------------------
    async def apply(self, path: str, manifest: Mapping[str, Any]) -> str:
        """Create the object at ``path``, or make its fields equal to ``manifest`` (server-side apply). Returns its UID.

        Code 404: the API server does not serve its kind."""
        query = {"fieldManager": "elastrain-operator", "force": "true"}
        what = f"apply {manifest['kind']} {manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        answer = await self._call("PATCH", path, what, manifest, query=query, content=APPLY, accept=METADATA)
        return str(answer["metadata"]["uid"])

    async def remove(self, path: str, what: str) -> None:
        """Delete the object at ``path``; no error if it is gone."""
        try:
            await self._call("DELETE", path, what)
        except ApiError as error:
            if error.code != 404:
                raise

    # ---- events ----------------------------------------------------------------------------------------------------
    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        """One attempt."""
        path = f"/api/v1/namespaces/{namespace}/events"
        await self._attempt(_Call("POST", path, "record an event", _encoded(event), {}, JSON, accept=METADATA))

    async def patch_event(self, namespace: str, name: str, change: Mapping[str, Any]) -> None:
        """Merge ``change`` into an event, in one attempt."""
        path = f"/api/v1/namespaces/{namespace}/events/{name}"
        await self._attempt(_Call("PATCH", path, "count an event", _encoded(change), {}, MERGE, accept=METADATA))

    # ---- lists and watches -----------------------------------------------------------------------------------------
    async def uids(self, path: str, what: str, query: Mapping[str, str]) -> set[str]:
        """UIDs of all objects that exist at some time after the start of the call."""
        found = self.list_pages(path, what, query, accept=METADATA_LIST)
        return {item["metadata"]["uid"] async for items, _ in found for item in items}

    def list_pages(self, path: str, what: str, query: Mapping[str, str], *, accept: str = JSON) -> Pages:
        """Objects, page by page, each with the resource version from which to watch.

        Code 410: the remaining pages have expired, list again.
        """
        return pages(lambda page: self._call("GET", path, what, query=page, accept=accept), query)

    async def changes(self, path: str, what: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a watch, until the API server ends it. The caller limits its silence."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS)
        used = self._access.headers
        headers = {**used, **_HEADERS, "Accept": JSON}
        try:
            async with self._session.get(
                self._access.server + path, params=query, headers=headers, timeout=timeout
            ) as response:
                if response.status == 401:
                    await self._renew(used, what)
                if response.status >= 400:
                    raise error_of(what, response.status, await response.read())
                async for line in _lines(response.content):
                    yield decoded(what, response.status, line)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(what, error) from error

    async def once(
        self, method: str, path: str, what: str, body: Mapping[str, Any] | None, seconds: float
    ) -> dict[str, Any]:
        """One attempt of at most ``seconds``, for callers with their own timing."""
        return await self._attempt(_Call(method, path, what, _encoded(body), {}, JSON, seconds))

    # ---- inside ----------------------------------------------------------------------------------------------------
    async def _get(self, path: str, what: str) -> dict[str, Any] | None:
        try:
            return await self._call("GET", path, what)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def _delete(self, path: str, uid: str, what: str, version: str | None = None) -> None:
        conditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        options = {"preconditions": conditions, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", path, what, options)
        except ApiError as error:
            if error.code not in (404, 409):  # gone, or another object has the name
                raise

    async def _call(
        self,
        method: str,
        path: str,
        what: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        request = _Call(method, path, what, _encoded(body), query or {}, content, accept=accept)
        return await repeated(lambda: self._attempt(request), is_worth_repeating)

    async def _attempt(self, request: _Call) -> dict[str, Any]:
        async with self._slots:  # the time of an attempt starts when it has a slot
            used = self._access.headers
            status, text, retry_after = await self._send(request)
            if status == 401:
                await self._renew(used, request.what)
                status, text, retry_after = await self._send(request)
        if status >= 400:
            raise error_of(request.what, status, text, retry_after)
        return decoded(request.what, status, text)

    async def _send(self, request: _Call) -> tuple[int, bytes, str]:
        """Code, body, and the header Retry-After. A write never outlives this process's lead."""
        if self._tenure is None or request.method == "GET":
            return await self._exchange(request, request.seconds)
        left = self._tenure.seconds_left(request.what)
        if request.seconds <= max(left, REQUEST_SECONDS):
            return await self._exchange(request, min(request.seconds, left))
        sending = asyncio.ensure_future(self._exchange(request, request.seconds))
        try:
            while not (await asyncio.wait([sending], timeout=left))[0]:
                left = self._tenure.seconds_left(request.what)  # longer again, if the Lease was renewed meanwhile
            return sending.result()
        finally:
            sending.cancel()

    async def _exchange(self, request: _Call, seconds: float) -> tuple[int, bytes, str]:
        started, code = time.monotonic(), 0
        try:
            async with self._session.request(
                request.method,
                self._access.server + request.path,
                params=request.query,
                data=request.data,
                headers={**self._access.headers, **_HEADERS, "Accept": request.accept, "Content-Type": request.content},
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                text, code = await response.read(), response.status
                clock.hear(response.headers.get("Date"))
                return code, text, response.headers.get("Retry-After", "")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise unreachable(request.what, error, seconds) from error
        finally:
            count_request(request.method, request.path, code, time.monotonic() - started)

    async def _renew(self, refused: dict[str, str], what: str) -> None:
        try:
            await self._access.renew(refused)
        except (kopf.LoginError, OSError) as error:
            raise ApiError(what, 401, "Unauthorized", f"cannot log in again: {error}") from error


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    what: str
    data: bytes | None
    query: Mapping[str, str]
    content: str
    seconds: float = REQUEST_SECONDS
    accept: str = JSON


def _encoded(body: Mapping[str, Any] | None) -> bytes | None:
    return None if body is None else orjson.dumps(body)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length, and what follows the last one: a part of a line, or a proxy's page without any."""
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest


def jobs_path(namespace: str) -> str:
    """The API path of the jobs of a namespace; empty: of all namespaces."""
    group = f"/apis/{names.API_VERSION}"
    return f"{group}/namespaces/{namespace}/{names.PLURAL}" if namespace else f"{group}/{names.PLURAL}"


def _job_path(namespace: str, name: str) -> str:
    return f"{jobs_path(namespace)}/{name}"


def pods_path(namespace: str) -> str:
    """The API path of the pods of a namespace; empty: of all namespaces."""
    return f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
