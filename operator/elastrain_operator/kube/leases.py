"""Requests for Leases (``coordination.k8s.io``): single attempts; the caller decides when to retry."""

from __future__ import annotations

from typing import Any

from elastrain_operator.config import LeaseName
from elastrain_operator.kube.client import ApiError, Kube


class Leases:
    """Reads and writes Leases as raw dicts. Every call takes at most ``seconds`` and may raise ``ApiError``."""

    def __init__(self, kube: Kube) -> None:
        """``kube``: a client without a tenure, since the tenure follows from the Lease."""
        self._kube = kube

    async def get(self, lease: LeaseName, seconds: float) -> dict[str, Any] | None:
        """The Lease, or None if the API server reports that it does not exist."""
        try:
            return await self._kube.once("GET", _path(lease), f"read lease {lease}", None, seconds)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def create(self, lease: LeaseName, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Code 409: it exists."""
        return await self._kube.once("POST", _path(lease, whole=False), f"create lease {lease}", body, seconds)

    async def replace(self, lease: LeaseName, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Code 409: it has changed since the ``resourceVersion`` of ``body``. Code 404: it is gone."""
        return await self._kube.once("PUT", _path(lease), f"renew lease {lease}", body, seconds)


def _path(lease: LeaseName, whole: bool = True) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{lease.namespace}/leases"
    return f"{path}/{lease.name}" if whole else path
