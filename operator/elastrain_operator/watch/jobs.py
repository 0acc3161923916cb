"""Jobs as kopf's watch shows them, and the deletions that it misses.

kopf lists the jobs anew when the API server's history does not reach back far enough (410 Gone). It reports each job of
the new list, and no deletion for a job that is missing from it. So the known jobs are compared with a list after each
list of kopf, and at intervals.

A namespace that cannot be read costs the others nothing: its jobs wait until its pods are listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError, Kube, jobs_path
from elastrain_operator.waiting import until
from elastrain_operator.watch import parse

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
        has_pods_of: Callable[[str], bool],
        on_job: Callable[[Mapping[str, Any]], None],
        on_deleted: Callable[[JobKeys], None],
    ) -> None:
        """``namespaces``: empty: all. ``interval``: seconds between two searches without a list by kopf. ``known``: the
        jobs that the operator believes to exist, by UID. ``has_pods_of``: whether the pods of a namespace are known:
        before, none of its jobs is passed on."""
        self._kube = kube
        self._namespaces = namespaces or ("",)
        self._interval = interval
        self._known = known
        self._has_pods_of = has_pods_of
        self._on_job = on_job
        self._on_deleted = on_deleted
        self._listed = asyncio.Event()
        self._waiting: dict[str, Mapping[str, Any]] = {}
        """Jobs whose pods are not known, by UID."""

    def event(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """An event of kopf's watch. ``kind``: ADDED, MODIFIED, DELETED, or None for a job of a list."""
        if kind is None:
            self._listed.set()
        meta = body["metadata"]
        if kind == "DELETED":
            self._waiting.pop(meta["uid"], None)
            self._on_deleted(JobKeys(meta["namespace"], meta["name"], meta["uid"]))
            return
        kept = parse.bounded({**body, "metadata": _without_copies(meta)})
        if self._has_pods_of(meta["namespace"]):
            self._on_job(kept)
        else:
            self._waiting[meta["uid"]] = kept

    def pods_listed(self) -> None:
        """The pods of one more namespace may be known."""
        for uid, body in [*self._waiting.items()]:
            if self._has_pods_of(body["metadata"]["namespace"]):
                del self._waiting[uid]
                self._on_job(body)

    async def run(self) -> None:
        """Search for missed deletions, until cancelled."""
        while True:
            await until(self._listed, self._interval)
            await asyncio.sleep(SETTLE)
            self._listed.clear()
            try:
                again = not await self.search()
            except ApiError as error:
                log.warning("deleted jobs not searched for", error=str(error))
                again = True
            if again:
                self._listed.set()
            await asyncio.sleep(REST)

    async def search(self) -> bool:
        """Forget all known jobs that no longer exist. Returns whether each namespace was listed, or may not be read.
        Raises ``ApiError`` if none was listed.

        A UID that is known before the list starts and missing from it is gone: UIDs are never reused.
        """
        known, failed = dict(self._known()), list[ApiError]()
        for namespace in self._namespaces:
            try:
                found = await self._kube.uids(jobs_path(namespace), "list jobs", {})
            except ApiError as error:
                failed.append(error)
                continue
            here = (uid for uid, job in known.items() if namespace in ("", job.namespace))
            self._forget(uid for uid in here if uid not in found)
        if len(failed) == len(self._namespaces):
            raise failed[0]
        for refusal in failed:
            log.warning("deleted jobs of one namespace not searched for", error=str(refusal))
        return all(refusal.denied for refusal in failed)

    def _forget(self, missing: Iterable[str]) -> None:
        for uid in missing:
            if (job := self._known().get(uid)) is not None:  # else the watch has shown its deletion meanwhile
                log.info("deleted while the watch was interrupted", namespace=job.namespace, job=job.job, uid=uid)
                self._on_deleted(job)


def _without_copies(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without managedFields and what ``kubectl apply`` has applied: each is as large as all the rest."""
    kept = {k: v for k, v in meta.items() if k != "managedFields"}
    if _APPLIED in (kept.get("annotations") or {}):
        kept["annotations"] = {k: v for k, v in kept["annotations"].items() if k != _APPLIED}
    return kept
