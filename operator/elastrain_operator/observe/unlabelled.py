"""Worker pods that the label selector does not show: their label was removed. They run, and hold their accelerators.

A watch with a selector reports an object that no longer matches as deleted. No watch shows such a pod any more, so it
is read again and again until it is gone, or has its label back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import structlog

from elastrain.api import names
from elastrain_operator.kube.client import ApiError
from elastrain_operator.observe.pods import Pods
from elastrain_operator.observe.raw import mapping, text
from elastrain_operator.waiting import until

AGAIN = 10.0
"""Seconds between two looks at a pod without its label."""

log = structlog.get_logger(__name__)


class Source(Protocol):
    """The part of :class:`elastrain_operator.kube.client.Kube` that is used."""

    async def get_pod(self, namespace: str, name: str) -> dict[str, Any] | None: ...


class Unlabelled:
    """Reads pods whose deletion is in doubt. ``run`` is the only task."""

    def __init__(self, source: Source, pods: Pods) -> None:
        self._source = source
        self._pods = pods
        self._doubted: set[str] = set()
        self._nudged = asyncio.Event()

    def doubt(self, uid: str) -> None:
        """The watch or a list no longer shows this pod."""
        if self._pods.find(uid) is None:
            self._pods.forget(uid)
            return
        self._doubted.add(uid)
        self._nudged.set()

    def see(self, body: Mapping[str, Any]) -> None:
        """Another watch shows a pod that a job controls and the selector misses."""
        uid = text(mapping(body.get("metadata")).get("uid"))
        self._pods.see(body)
        if self._pods.find(uid) is not None and uid not in self._doubted:
            self._doubted.add(uid)
            self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await until(self._nudged, AGAIN if self._doubted else None)
            self._nudged.clear()
            for uid in sorted(self._doubted):
                try:
                    await self.look(uid)
                except ApiError as error:
                    log.warning("pod without its label not read", uid=uid, error=str(error))

    async def look(self, uid: str) -> None:
        """Read one pod. Raises ``ApiError``; then nothing changes."""
        known = self._pods.find(uid)
        if known is None:
            self._doubted.discard(uid)
            return
        job, pod = known
        body = await self._source.get_pod(job.namespace, pod.name)
        if body is None or mapping(body.get("metadata")).get("uid") != uid:
            self._doubted.discard(uid)
            self._pods.forget(uid)
            return
        self._pods.see(body)
        if mapping(body["metadata"].get("labels")).get(names.LABEL_MANAGED_BY) == names.MANAGED_BY:
            self._doubted.discard(uid)  # the watch shows it again
