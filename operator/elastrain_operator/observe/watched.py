"""Jobs and worker pods as kopf's watches show them: the first list, the events, and missed deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import Kube, jobs_path, pods_path
from elastrain_operator.observe.pods import SELECTOR, OnPod, OnStray, Pods
from elastrain_operator.observe.unlabelled import Unlabelled
from elastrain_operator.observe.vanished import Kind, Search

Body = Mapping[str, Any]


class Watched:
    """Passes jobs and pods on to the operator, and keeps the pods."""

    def __init__(
        self,
        kube: Kube,
        namespaces: tuple[str, ...],
        resync: float,
        *,
        jobs: Callable[[], Mapping[str, JobKeys]],
        on_job: Callable[[Body], None],
        on_job_gone: Callable[[JobKeys], None],
        on_pod: OnPod,
        on_stray: OnStray = lambda *_: None,
    ) -> None:
        """``namespaces``: empty: all. ``resync``: seconds between two searches for objects whose deletion was missed.
        ``jobs``: the known jobs, by UID."""
        self._kube = kube
        self._on_job = on_job
        self._on_job_gone = on_job_gone
        self.pods = Pods(on_pod, on_stray)
        self.unlabelled = Unlabelled(kube, self.pods)
        served = namespaces or ("",)

        def forget(uid: str) -> None:
            if (job := jobs().get(uid)) is not None:  # else the watch has shown its deletion meanwhile
                on_job_gone(job)

        self._job_kind = Kind("jobs", tuple(map(jobs_path, served)), known=jobs, forget=forget)
        self._pod_kind = Kind(
            "worker pods",
            tuple(map(pods_path, served)),
            known=self.pods.uids,
            forget=self.unlabelled.doubt,
            query={"labelSelector": SELECTOR},
        )
        self._search = Search(kube, (self._job_kind, self._pod_kind), resync)

    async def list_first(self) -> None:
        """List all worker pods before kopf shows the first job: no job is planned while its pods are unknown.

        Lists jobs as well: kopf asks only once, at its start, whether the API server serves them. Raises ``ApiError``.
        """
        jobs, pods = self._job_kind, self._pod_kind
        for path in jobs.paths:
            await self._kube.uids(path, f"list {jobs.what}", jobs.query)
        for path in pods.paths:
            async for bodies, _ in self._kube.list_pages(path, f"list {pods.what}", pods.query):
                for body in bodies:
                    self.pods.see(body)

    async def run(self) -> None:
        """Search for missed deletions and for pods without their label, until cancelled."""
        await asyncio.gather(self._search.run(), self.unlabelled.run())

    def job_event(self, kind: str | None, body: Body) -> None:
        """A job. ``kind``: ADDED, MODIFIED, DELETED, or None for an object of a list."""
        self._note_list(kind)
        if kind == "DELETED":
            meta = body["metadata"]
            self._on_job_gone(JobKeys(meta["namespace"], meta["name"], meta["uid"]))
        else:
            self._on_job(_without_bulk(body))

    def pod_event(self, kind: str | None, body: Body) -> None:
        """The same for a worker pod."""
        self._note_list(kind)
        if kind != "DELETED":
            self.pods.see(body)
        elif "deletionTimestamp" in body["metadata"]:
            self.pods.forget(body["metadata"]["uid"], body)
        else:  # the API server marks each deletion first: only the label is gone
            self.unlabelled.doubt(body["metadata"]["uid"])

    def _note_list(self, kind: str | None) -> None:
        if kind is None:
            self._search.nudge()


def _without_bulk(body: Body) -> Body:
    """The job without ``managedFields``, which are as large as all the rest."""
    return {**body, "metadata": {k: v for k, v in body["metadata"].items() if k != "managedFields"}}
