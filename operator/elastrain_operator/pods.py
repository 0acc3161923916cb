"""All worker pods as the API server's watch shows them: parsed on arrival, kept by job, and who is to be told.

kopf is not used for them: it spends several times as long on an event as is spent here, and pods have most of the
events (docs/decisions/0047).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator import observe
from elastrain_operator.kube import ApiError, pods_path
from elastrain_operator.model import Pod
from elastrain_operator.reflector import GONE, Source

WORKERS = {"labelSelector": f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"}
RETRY_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before list or watch are tried again: by failures in a row. The first is also the one after a watch that the
API server ended in its time."""
OnPod = Callable[[JobKeys, Pod, bool], None]
"""Called with the job, the pod, and whether it is gone: else it is new or differs from what was shown before."""

log = structlog.get_logger(__name__)


class Pods:
    """Worker pods by the UID of their job."""

    def __init__(self) -> None:
        self._by_job: dict[str, dict[str, Pod]] = {}

    def of(self, job_uid: str) -> tuple[Pod, ...]:
        return tuple(self._by_job.get(job_uid, {}).values())

    def put(self, job_uid: str, pod: Pod) -> None:
        self._by_job.setdefault(job_uid, {})[pod.uid] = pod

    def drop(self, job_uid: str, pod_uid: str) -> None:
        pods = self._by_job.get(job_uid, {})
        pods.pop(pod_uid, None)
        if not pods:
            self._by_job.pop(job_uid, None)


class PodWatch:
    """Keeps :class:`Pods` true for one namespace. What it last knew stays while the API server is silent."""

    def __init__(self, source: Source, namespace: str, pods: Pods, on_pod: OnPod) -> None:
        """``namespace``: empty: all."""
        self.listed = asyncio.Event()
        """Set once all pods that existed at the start are known."""
        self._source = source
        self._namespace = namespace
        self._path = pods_path(namespace)
        self._pods = pods
        self._on_pod = on_pod
        self._known: dict[str, tuple[JobKeys, Pod]] = {}
        self._version = ""  # from which to watch on; empty: list first
        self._failures = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
            except ApiError as error:
                self._failed(str(error), lost=error.code == GONE)
            except Exception:
                log.exception("the watch of pods failed", namespace=self._namespace or "all")
                self._failed("a fault of ours", lost=True)
            await asyncio.sleep(RETRY_DELAYS[min(self._failures, len(RETRY_DELAYS) - 1)])

    def _failed(self, words: str, lost: bool) -> None:
        self._failures += 1
        if lost:
            self._version = ""
        else:
            log.warning("pods are not known", namespace=self._namespace or "all", error=words)

    async def _list(self) -> None:
        seen: set[str] = set()
        version = ""
        async for items, version in self._source.list_pages(self._path, "list pods", WORKERS):  # noqa: B007 - the last one
            seen |= {body["metadata"]["uid"] for body in items}
            for body in items:
                self._take(body)
        for uid in [uid for uid in self._known if uid not in seen]:
            self._forget(uid)
        self._version = version
        self.listed.set()

    async def _follow(self) -> None:
        async for event in self._source.changes(self._path, "watch pods", WORKERS, self._version):
            body = event["object"]
            if event["type"] == "DELETED":
                self._forget(body["metadata"]["uid"])
            elif event["type"] != "BOOKMARK":
                self._take(body)
            self._version = body["metadata"]["resourceVersion"]
            self._failures = 0
        self._failures = 0

    def _take(self, body: Mapping[str, Any]) -> None:
        uid = body["metadata"]["uid"]
        found = _parsed(body)
        before = self._known.get(uid)
        if before and (found is None or found[0] != before[0]):
            self._forget(uid)  # its labels say no more that it is that job's
            before = None
        if found is None or found == before:
            return
        keys, pod = self._known[uid] = found
        self._pods.put(keys.uid, pod)
        self._on_pod(keys, pod, False)

    def _forget(self, uid: str) -> None:
        if uid in self._known:
            keys, pod = self._known.pop(uid)
            self._pods.drop(keys.uid, uid)
            self._on_pod(keys, pod, True)


def _parsed(body: Mapping[str, Any]) -> tuple[JobKeys, Pod] | None:
    """The pod and whose it is; None if its labels do not say. One that cannot be read hides no other."""
    meta = body["metadata"]
    labels = meta.get("labels") or {}
    job, uid = labels.get(names.LABEL_JOB), labels.get(names.LABEL_JOB_UID)
    if not job or not uid:
        return None
    try:
        pod = observe.pod(body)
    except (KeyError, TypeError, ValueError):
        log.exception("pod not understood", pod=meta.get("name"), namespace=meta.get("namespace"))
        return None
    return (JobKeys(meta["namespace"], job, uid), pod) if pod else None
