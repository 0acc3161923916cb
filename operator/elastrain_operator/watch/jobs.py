"""Jobs as kopf's watch shows them, and the deletions that it misses.

kopf lists the jobs anew when the API server's history does not reach back far enough (410 Gone). It reports each job of
the new list, and no deletion for a job that is missing from it. So the known jobs are compared with a list after each
list of kopf, and at intervals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError, Kube, jobs_path
from elastrain_operator.waiting import until

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SETTLE = 2.0
"""Seconds between the first job of a list and the search: the list is complete by then, or is searched again."""
REST = 10.0
"""Least seconds between two searches."""

log = structlog.get_logger(__name__)


class Jobs:
    """Passes jobs on to the operator."""

    def __init__(
        self,
        kube: Kube,
        namespaces: tuple[str, ...],
        interval: float,
        *,
        known: Callable[[], Mapping[str, JobKeys]],
        on_job: Callable[[Mapping[str, Any]], None],
        on_deleted: Callable[[JobKeys], None],
    ) -> None:
        """``namespaces``: empty: all. ``interval``: seconds between two searches without a list by kopf. ``known``: the
        jobs that the operator believes to exist, by UID."""
        self._kube = kube
        self._paths = tuple(map(jobs_path, namespaces or ("",)))
        self._interval = interval
        self._known = known
        self._on_job = on_job
        self._on_deleted = on_deleted
        self._listed = asyncio.Event()

    def event(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """An event of kopf's watch. ``kind``: ADDED, MODIFIED, DELETED, or None for a job of a list."""
        if kind is None:
            self._listed.set()
        meta = body["metadata"]
        if kind == "DELETED":
            self._on_deleted(JobKeys(meta["namespace"], meta["name"], meta["uid"]))
        else:
            self._on_job({**body, "metadata": _without_copies(meta)})

    async def run(self) -> None:
        """Search for missed deletions, until cancelled."""
        while True:
            await until(self._listed, self._interval)
            await asyncio.sleep(SETTLE)
            self._listed.clear()
            try:
                await self.search()
            except ApiError as error:
                log.warning("deleted jobs not searched for", error=str(error))
                self._listed.set()
            await asyncio.sleep(REST)

    async def search(self) -> None:
        """Forget all known jobs that no longer exist. Raises ``ApiError``; then none is forgotten.

        A UID that is known before the list starts and missing from it is gone: UIDs are never reused.
        """
        known = frozenset(self._known())
        for path in self._paths:
            known -= await self._kube.uids(path, "list jobs", {})
        for uid in known:
            if (job := self._known().get(uid)) is not None:  # else the watch has shown its deletion meanwhile
                log.info("deleted while the watch was interrupted", namespace=job.namespace, job=job.job, uid=uid)
                self._on_deleted(job)


def _without_copies(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without managedFields and what ``kubectl apply`` has applied: each is as large as all the rest."""
    kept = {k: v for k, v in meta.items() if k != "managedFields"}
    if _APPLIED in (kept.get("annotations") or {}):
        kept["annotations"] = {k: v for k, v in kept["annotations"].items() if k != _APPLIED}
    return kept
