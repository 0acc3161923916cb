"""Worker pods of all jobs: parsed on arrival, kept by job. The operator's only store of pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator.model import Pod
from elastrain_operator.observe import parse

SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
OnPod = Callable[[JobKeys, Pod, bool], None]
"""Called with the job, the pod, and whether the pod is gone. Otherwise the pod is new or differs from before."""

log = structlog.get_logger(__name__)


class Pods:
    """Worker pods by the UID of their job. The last known state stays while the API server is silent."""

    def __init__(self, on_pod: OnPod) -> None:
        self._on_pod = on_pod
        self._by_uid: dict[str, tuple[JobKeys, Pod]] = {}
        self._by_job: dict[str, dict[str, Pod]] = {}

    def of(self, job_uid: str) -> tuple[Pod, ...]:
        return tuple(self._by_job.get(job_uid, {}).values())

    def uids(self) -> frozenset[str]:
        """UIDs of all known pods."""
        return frozenset(self._by_uid)

    def see(self, body: Mapping[str, Any]) -> None:
        """The pod exists; ``body`` is its current version."""
        uid = body["metadata"]["uid"]
        before, now = self._by_uid.get(uid), _parsed(body)
        if now == before:
            return
        if before is not None and (now is None or now[0] != before[0]):  # its labels name another job, or none
            self.forget(uid)
        if now is not None:
            job, pod = self._by_uid[uid] = now
            self._by_job.setdefault(job.uid, {})[uid] = pod
            self._on_pod(job, pod, False)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        known = self._by_uid.pop(uid, None)
        if known is None:
            return
        job, pod = known
        pods = self._by_job[job.uid]
        del pods[uid]
        if not pods:
            del self._by_job[job.uid]
        self._on_pod(job, pod, True)


def _parsed(body: Mapping[str, Any]) -> tuple[JobKeys, Pod] | None:
    """The pod with its job; None if the labels name no job. An unreadable pod is logged and does not affect others."""
    meta = body["metadata"]
    labels = meta.get("labels") or {}
    job, uid = labels.get(names.LABEL_JOB), labels.get(names.LABEL_JOB_UID)
    if not job or not uid:
        return None
    try:
        pod = parse.pod(body)
    except (KeyError, TypeError, ValueError):
        log.exception("unreadable pod", pod=meta.get("name"), namespace=meta.get("namespace"))
        return None
    return (JobKeys(meta["namespace"], job, uid), pod) if pod else None
