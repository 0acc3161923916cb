"""All worker pods as the API server's watch shows them: parsed on arrival, kept by job, and who is to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import pods_path
from elastrain_operator.model import Pod
from elastrain_operator.observe import parse
from elastrain_operator.observe.reflector import Reflector, Source

WORKERS = {"labelSelector": f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"}
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


def watch(source: Source, namespace: str, pods: Pods, on_pod: OnPod) -> Reflector[tuple[JobKeys, Pod]]:
    """Keeps ``pods`` true for one namespace (empty: for all). What it last knew stays while the API server is
    silent."""

    def changed(before: tuple[JobKeys, Pod] | None, now: tuple[JobKeys, Pod] | None) -> None:
        if before and (now is None or now[0] != before[0]):  # gone, or its labels say no more that it is that job's
            job, pod = before
            pods.drop(job.uid, pod.uid)
            on_pod(job, pod, True)
        if now:
            job, pod = now
            pods.put(job.uid, pod)
            on_pod(job, pod, False)

    what = f"worker pods of namespace {namespace}" if namespace else "worker pods"
    return Reflector(source, pods_path(namespace), what, parse=_parsed, on_object=changed, query=WORKERS)


def _parsed(body: Mapping[str, Any]) -> tuple[JobKeys, Pod] | None:
    """The pod and whose it is; None if its labels do not say. One that cannot be read hides no other."""
    meta = body["metadata"]
    labels = meta.get("labels") or {}
    job, uid = labels.get(names.LABEL_JOB), labels.get(names.LABEL_JOB_UID)
    if not job or not uid:
        return None
    try:
        pod = parse.pod(body)
    except (KeyError, TypeError, ValueError):
        log.exception("pod not understood", pod=meta.get("name"), namespace=meta.get("namespace"))
        return None
    return (JobKeys(meta["namespace"], job, uid), pod) if pod else None
