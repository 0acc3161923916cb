"""The few calls of the API server that the operator makes, on raw dicts; ``PERMISSIONS`` is the RBAC they need."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential

from elastrain.api import names
from elastrain_operator.metrics.process import count_request

PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {
    (names.GROUP, names.PLURAL): frozenset({"get", "list", "watch", "delete"}),
    (names.GROUP, f"{names.PLURAL}/status"): frozenset({"patch"}),
    ("", "pods"): frozenset({"get", "list", "watch", "create", "delete"}),
    ("", "events"): frozenset({"create"}),
}
"""(API group, resource) → verbs: all that the operator uses, kopf's watches included. Namespaced; nothing is
cluster-scoped. The chart's role is tested against it."""

REQUEST_SECONDS = 10.0
"""One attempt of a call."""
CALL_SECONDS = 25.0
"""All attempts of a call."""
_ATTEMPTS = 4
_RETRIED = frozenset({429, 500, 502, 503, 504})


class ApiError(Exception):
    """The API server refused a call, or could not be reached (``code`` 0). The message is its own words."""

    def __init__(self, what: str, code: int, reason: str, message: str) -> None:
        super().__init__(f"the API server refused to {what}: {message}" if code else f"cannot {what}: {message}")
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def is_transient(self) -> bool:
        return self.code == 0 or self.code in _RETRIED


class Kube:
    """Calls with bounded retries on 429, 5xx and timeouts. Every call may raise :class:`ApiError`."""

    def __init__(self, client: kubernetes_client.ApiClient) -> None:
        self._client = client

    @classmethod
    async def connect(cls) -> Kube:
        """By the pod's service account, else by the kubeconfig. Raises ``ConfigException`` if there is neither."""
        try:
            kubernetes_config.load_incluster_config()
        except kubernetes_config.ConfigException:
            await kubernetes_config.load_kube_config()
        return cls(kubernetes_client.ApiClient())

    async def close(self) -> None:
        await self._client.close()

    # ---- jobs ------------------------------------------------------------------------------------------------------
    async def get_job(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The job, or None if the API server says that there is none."""
        return await self._get(_job_path(namespace, name), f"read job {namespace}/{name}")

    async def patch_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Merge ``status`` into the job's; a null removes a field."""
        path, what = _job_path(namespace, name) + "/status", f"write the status of job {namespace}/{name}"
        await self._call("PATCH", path, what, {"status": status}, content="application/merge-patch+json")

    async def delete_job(self, namespace: str, name: str, uid: str) -> None:
        """Delete this very job, and its pods after it; no error if it is gone."""
        await self._delete(_job_path(namespace, name), uid, f"delete job {namespace}/{name}")

    # ---- pods ------------------------------------------------------------------------------------------------------
    async def get_pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The pod, or None if the API server says that there is none."""
        return await self._get(f"{_pods_path(namespace)}/{name}", f"read pod {namespace}/{name}")

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create; unknown fields of the template are refused. Code 409: the name is taken."""
        what = f"create pod {namespace}/{manifest['metadata']['name']}"
        return await self._call("POST", _pods_path(namespace), what, manifest, query={"fieldValidation": "Strict"})

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Ask for the deletion of this very pod, with its own grace period; no error if it is gone."""
        await self._delete(f"{_pods_path(namespace)}/{name}", uid, f"delete pod {namespace}/{name}")

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> None:
        await self._call("POST", f"/api/v1/namespaces/{namespace}/events", "record an event", event)

    # ---- inside ----------------------------------------------------------------------------------------------------
    async def _get(self, path: str, what: str) -> dict[str, Any] | None:
        try:
            return await self._call("GET", path, what)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def _delete(self, path: str, uid: str, what: str) -> None:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", path, what, options)
        except ApiError as error:
            if error.code not in (404, 409):  # gone, or another object has the name now
                raise

    async def _call(
        self,
        method: str,
        path: str,
        what: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda e: isinstance(e, ApiError) and e.is_transient),
            stop=stop_after_attempt(_ATTEMPTS) | stop_after_delay(CALL_SECONDS),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            reraise=True,
        )
        request = _Request(method, path, what, body, query or {}, content)
        return await retrying(self._attempt, request)

    async def _attempt(self, request: _Request) -> dict[str, Any]:
        # Serialised for every attempt: a service account's token may have been renewed since the last one.
        method, url, headers, data, _ = await self._client.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query.items()),
            header_params={"Accept": "application/json", "Content-Type": request.content},
            body=request.body,
            auth_settings=["BearerToken"],
        )
        started, code = time.monotonic(), 0
        try:
            response = await self._client.rest_client.request(
                method, url, headers=headers, body=data, _request_timeout=REQUEST_SECONDS
            )
            text, code = await response.read(), response.status
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(request.what, 0, "Unreachable", str(error) or type(error).__name__) from error
        finally:
            count_request(request.method, request.path, code, time.monotonic() - started)
        if response.status >= 400:
            raise _refusal(request.what, response.status, text)
        return dict(json.loads(text))


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    what: str
    body: Mapping[str, Any] | None
    query: Mapping[str, str]
    content: str


def _refusal(what: str, code: int, text: bytes) -> ApiError:
    """An error from the API server's Status object; what is not one (a proxy's page) is quoted."""
    try:
        status = json.loads(text)
        return ApiError(what, code, str(status.get("reason") or ""), str(status.get("message") or f"HTTP {code}"))
    except (ValueError, AttributeError):
        return ApiError(what, code, "", f"HTTP {code}: {text[:200].decode(errors='replace')}")


def _job_path(namespace: str, name: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"


def _pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"
