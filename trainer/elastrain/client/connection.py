"""Requests to the API server on plain dicts: typed models would cost ten times the time of the call."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from elastrain.client import errors

REQUEST_SECONDS = 15.0
"""One call. Watches and followed logs are bounded only until the answer begins."""
MERGE_PATCH = "application/merge-patch+json"
_NAMESPACE_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Connection:
    """To one API server, as one user."""

    def __init__(self, api: kubernetes_client.ApiClient, namespace: str) -> None:
        self._api = api
        self.namespace = namespace
        """The one that calls are about, if they say nothing else."""

    @classmethod
    async def open(
        cls, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> Self:
        """By ``kubeconfig``, else ``$KUBECONFIG``, else ``~/.kube/config``, or in a pod by its service account.

        ``namespace``: None means that of the context, or of the pod. No request is made yet. Raises
        :class:`~elastrain.client.NotConnected`.
        """
        configuration = kubernetes_client.Configuration()
        try:
            # The package reads $KUBECONFIG only once, when it is imported.
            own = await _load(configuration, context, kubeconfig or os.environ.get("KUBECONFIG"))
        except (kubernetes_config.ConfigException, OSError, ValueError) as error:
            raise errors.NotConnected(
                f"cannot connect to {f'context {context}' if context else 'a cluster'}: {error}; "
                "name a kubeconfig by $KUBECONFIG"
            ) from error
        return cls(kubernetes_client.ApiClient(configuration), namespace or own)

    async def close(self) -> None:
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
    ) -> dict[str, Any]:
        """One request and its answer. ``what`` is tried, with the job ``name``: for the error, a ``ClusterError``."""
        try:
            response = await self._request(
                method, path, query=query or {}, bounds=REQUEST_SECONDS, body=body, content=content
            )
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise errors.of_connection(what, self._api.configuration.host, error) from error
        if response.status >= 400:
            raise errors.of_answer(what, self.namespace, name, response.status, text)
        return dict(json.loads(text))

    async def lines(self, path: str, what: str, name: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The lines of an answer as they come, until it ends. Raises ``ClusterError``, also if it breaks off."""
        bounds = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS)
        try:
            response = await self._request("GET", path, query=query, bounds=bounds, content="application/json")
            if response.status >= 400:
                raise errors.of_answer(what, self.namespace, name, response.status, await response.read())
            async with response:
                async for line in response.content:
                    yield line
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise errors.of_connection(what, self._api.configuration.host, error) from error

    async def _request(
        self, method: str, path: str, *, query: Mapping[str, str], bounds: Any, body: Any = None, content: str
    ) -> aiohttp.ClientResponse:
        # Serialised for every request: a token may have been renewed since the last one.
        method, url, headers, data, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._api.rest_client.request(method, url, headers=headers, body=data, _request_timeout=bounds)
        response: aiohttp.ClientResponse = answer.response
        return response


async def _load(configuration: Any, context: str | None, kubeconfig: str | None) -> str:
    """Fill ``configuration``; returns the namespace that it is for."""
    try:
        await kubernetes_config.load_kube_config(
            config_file=kubeconfig, context=context, client_configuration=configuration
        )
    except kubernetes_config.ConfigException as no_kubeconfig:
        if context or kubeconfig:
            raise
        try:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        except kubernetes_config.ConfigException:
            raise no_kubeconfig from None
        return _NAMESPACE_OF_POD.read_text().strip()  # noqa: ASYNC240 - a file in memory
    contexts, active = kubernetes_config.list_kube_config_contexts(config_file=kubeconfig)
    chosen = next((c for c in contexts if c["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")
