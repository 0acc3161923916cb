"""Requests to the API server as plain dicts: typed models would take ten times the duration of the call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from elastrain_cli.client import errors, kubeconfig, reach
from elastrain_cli.client.kubeconfig import places
from elastrain_resource.reflector import Pages, pages

REQUEST_SECONDS = 15.0
"""Seconds for one call. A watch or a followed log has this limit only until its answer begins."""
LOGIN_SECONDS = 120.0
"""Seconds for a kubeconfig's login program; the user may have to type."""
MERGE_PATCH = "application/merge-patch+json"
_NAMESPACE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_UNUSABLE = (
    kubernetes_config.ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError,
)  # fmt: skip
"""Errors of the ``kubernetes`` package for a kubeconfig that is missing or invalid, or names an invalid certificate."""


class Connection:
    """A connection to one API server as one user."""

    def __init__(self, api: kubernetes_client.ApiClient, namespace: str, request_seconds: float) -> None:
        self._api = api
        self.namespace = namespace
        """Default namespace of calls."""
        self._seconds = request_seconds

    @classmethod
    async def open(
        cls,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        request_seconds: float | None = None,
    ) -> Self:
        """Connect by ``kubeconfig``, else ``$KUBECONFIG``, else ``~/.kube/config``, or in a pod by its service account.

        ``namespace``: None: the namespace of the context, or of the pod. ``request_seconds``: limit of each call. The
        proxy is the kubeconfig's ``proxy-url``, else the environment's (``HTTPS_PROXY``, ``NO_PROXY``), as in kubectl.
        Sends no request. Raises :class:`~elastrain_cli.client.NotConnected`.
        """
        configuration = kubernetes_client.Configuration()
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                # The package reads $KUBECONFIG only once, at its import.
                own = await _load(configuration, context, kubeconfig or os.environ.get("KUBECONFIG"))
            configuration.proxy = configuration.proxy or reach.proxy_of(configuration.host, os.environ)
            # aiohttp ignores networks in NO_PROXY and takes passwords from .netrc, so this code reads the environment
            # itself.
            configuration.client_session_kwargs = {"trust_env": False}
            api = kubernetes_client.ApiClient(configuration)
            api.user_agent = f"elastrain/{version('elastrain')}"  # in audit logs; in managedFields up to '/'
        except TimeoutError as error:
            raise errors.NotConnected(
                f"cannot connect to a cluster: the kubeconfig's login did not end within {LOGIN_SECONDS:g} s; "
                "does kubectl get namespaces prompt for input?"
            ) from error
        except _UNUSABLE as error:
            raise errors.NotConnected(f"cannot connect to a cluster: {_why_not(error, context, kubeconfig)}") from error
        return cls(api, namespace or own, request_seconds or REQUEST_SECONDS)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self._api.configuration.host)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def call(
        self,
        method: str,
        path: str,
        what: str,
        name: str = "",
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send one request and return its answer. ``what`` and the job's ``name`` describe the request in a
        ``ClusterError``."""
        headers = {"Content-Type": content, **(headers or {})}
        try:
            response = await self._request(
                method, path, query=query or {}, bounds=self._seconds, body=body, headers=headers
            )
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unreachable(what, error) from error
        if response.status >= 400:
            raise errors.of_answer(what, self.namespace, name, response.status, text)
        return _object(text, what, path)

    def list_pages(self, path: str, what: str, query: Mapping[str, str]) -> Pages:
        """The objects of a list, page by page, each with the version to watch from."""
        return pages(lambda page: self.call("GET", path, what, query=page), query)

    async def changes(self, path: str, what: str, query: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a watch, until the API server ends it."""
        async with contextlib.aclosing(self.lines(path, what, "", query)) as lines:
            async for line in lines:
                yield json.loads(line)

    async def lines(self, path: str, what: str, name: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """The lines of an answer as they arrive. Raises ``ClusterError``, also if the answer breaks off."""
        bounds = aiohttp.ClientTimeout(total=None, sock_connect=self._seconds)
        try:
            response = await self._request("GET", path, query=query, bounds=bounds, headers={})
            if response.status >= 400:
                raise errors.of_answer(what, self.namespace, name, response.status, await response.read())
            async with response:
                async for line in response.content:
                    yield line
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unreachable(what, error) from error

    def _unreachable(self, what: str, error: BaseException) -> errors.NotConnected:
        cause = reach.why(error, self.server, self._api.configuration.proxy, self._seconds)
        return errors.NotConnected(f"cannot {what}: {cause}")

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        bounds: Any,
        body: Any = None,
        headers: Mapping[str, str],
    ) -> aiohttp.ClientResponse:
        # Serialised for each request, since a token may have been renewed.
        method, url, headers, data, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", **headers},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._api.rest_client.request(method, url, headers=headers, body=data, _request_timeout=bounds)
        response: aiohttp.ClientResponse = answer.response
        return response


def _object(text: bytes, what: str, path: str) -> dict[str, Any]:
    """The API server's answer. Raises ``NotConnected`` if another server answered."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and ("kind" in found or (path == "/version" and "gitVersion" in found)):
        return found
    raise errors.of_stranger(what, text.decode(errors="replace"))


def _why_not(error: BaseException, context: str | None, named: str | None) -> str:
    return kubeconfig.why_not(error, kubeconfig.places(named), context)


async def _load(configuration: Any, context: str | None, kubeconfig: str | None) -> str:
    """Fill ``configuration``; returns its namespace."""
    # Read here, since the package logs warnings about harmless states.
    if not (context or kubeconfig or any(file.exists() for file in places())):
        kubernetes_config.load_incluster_config(client_configuration=configuration)
        return _NAMESPACE_OF_POD.read_text().strip()  # noqa: ASYNC240 - a file in memory
    if not any(file.exists() for file in places(kubeconfig)):
        raise kubernetes_config.ConfigException("no such file")
    await kubernetes_config.load_kube_config(
        config_file=kubeconfig, context=context, client_configuration=configuration
    )
    contexts, active = kubernetes_config.list_kube_config_contexts(config_file=kubeconfig)
    chosen = next((c for c in contexts if c["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")
