"""Requests for named Secrets, and for the pods of etcd: single attempts; the caller looks again a minute later."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastrain_operator.keys.decide import Member
from elastrain_operator.kube.client import ApiError, Kube

SECONDS = 10.0
"""For one request."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret as it was read. ``body`` has its ``resourceVersion``, so that a write replaces this state only."""

    data: Mapping[str, bytes]
    annotations: Mapping[str, str]
    body: Mapping[str, Any]


class KeySecrets:
    """The part of one namespace that is used. Each call may raise ``ApiError``."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._base = f"/api/v1/namespaces/{namespace}"

    async def secret(self, name: str) -> Secret | None:
        """None: the API server reports that it does not exist."""
        body = await self._get(f"{self._base}/secrets/{name}", f"read Secret {name}")
        if body is None:
            return None
        data = {key: base64.b64decode(value) for key, value in (body.get("data") or {}).items()}
        return Secret(data, body["metadata"].get("annotations") or {}, body)

    async def replace(self, former: Secret, data: Mapping[str, bytes], annotations: Mapping[str, str]) -> None:
        """Code 409: the Secret has changed since it was read. Annotations without an entry here stay."""
        metadata = former.body["metadata"]
        body = {
            **former.body,
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
            "metadata": {**metadata, "annotations": {**former.annotations, **annotations}},
        }
        path, what = f"{self._base}/secrets/{metadata['name']}", f"write Secret {metadata['name']}"
        await self._kube.once("PUT", path, what, body, SECONDS)

    async def members(self, names: Iterable[str]) -> tuple[Member, ...]:
        """The pods of these names that exist."""
        found = [await self._get(f"{self._base}/pods/{name}", f"read pod {name}") for name in names]
        return tuple(_member(pod) for pod in found if pod is not None)

    async def evict(self, member: Member) -> None:
        """Code 429: its disruption budget forbids it now. Code 409: another pod has its name."""
        path, what = f"{self._base}/pods/{member.name}/eviction", f"evict pod {member.name}"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": member.name},
            "deleteOptions": {"preconditions": {"uid": member.uid}},
        }
        await self._kube.once("POST", path, what, body, SECONDS)

    async def _get(self, path: str, what: str) -> dict[str, Any] | None:
        try:
            return await self._kube.once("GET", path, what, None, SECONDS)
        except ApiError as error:
            if error.code == 404:
                return None
            raise


def _member(pod: Mapping[str, Any]) -> Member:
    metadata = pod["metadata"]
    conditions = pod.get("status", {}).get("conditions") or ()
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return Member(metadata["name"], metadata["uid"], is_ready and "deletionTimestamp" not in metadata)
