"""Executes the decisions about a job's Workloads: the only writer of them beside Kueue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog

from elastrain.api import names
from elastrain_operator import clock
from elastrain_operator.facts import WORKLOAD_NOTE, JobRef
from elastrain_operator.kube.answers import ApiError
from elastrain_operator.kube.client import MERGE, METADATA_LIST, Kube, pods_path
from elastrain_operator.kueue import render
from elastrain_operator.kueue.workload import (
    API_VERSION,
    GROUP,
    Activate,
    Change,
    Create,
    Delete,
    Finish,
    Ready,
    Release,
    Request,
    View,
    Write,
)

PARALLEL = 16
"""Workloads of one job that are written at a time."""
ATTEMPTS = 5
"""Attempts of one write of a status: Kueue writes to the same object."""
REQUEUED = frozenset({"Preempted", "NodeFailures"})
"""Reasons of evictions after which a Workload queues again at once; after others, Kueue says when."""

log = structlog.get_logger(__name__)


class Writer:
    """Writes the Workloads of all jobs."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def execute(
        self, job: JobRef, request: Request, view: View, template: Mapping[str, Any], writes: tuple[Write, ...]
    ) -> None:
        """Execute ``writes``, those of one Workload in order. Raises ``ApiError``; the next pass decides again.

        Quota goes back only if the API server itself shows no pod that is charged to the Workload: the watch of pods
        may not show one yet whose creation this process, or the one before it, has asked for.
        """
        frees = any(isinstance(w, (Delete, Release)) for w in writes)
        held = await self._held(job) if frees else frozenset()
        limit, by_name = asyncio.Semaphore(PARALLEL), dict[str, list[Write]]()
        for write in writes:
            if write.name in held and isinstance(write, (Delete, Release)):
                log.info("a pod of the Workload exists", job=job.name, workload=write.name)
            else:
                by_name.setdefault(write.name, []).append(write)

        async def follow(some: list[Write]) -> None:
            async with limit:
                for write in some:
                    if isinstance(write, Create):
                        await self._create(job, request, view, template, write)
                    else:
                        await self._write(job, write)

        results = await asyncio.gather(*map(follow, by_name.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _held(self, job: JobRef) -> frozenset[str]:
        """Workloads to which a pod of the job is charged that has not ended."""
        live = {
            "labelSelector": f"{names.LABEL_JOB_UID}={job.uid}",
            "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
        }
        what = f"list the pods of job {job.namespace}/{job.name}"
        found = self._kube.list_pages(pods_path(job.namespace), what, live, accept=METADATA_LIST)
        notes = [p["metadata"].get("annotations") or {} async for pods, _ in found for p in pods]
        return frozenset(note.get(WORKLOAD_NOTE, "") for note in notes)

    async def _create(
        self, job: JobRef, request: Request, view: View, template: Mapping[str, Any], draft: Create
    ) -> None:
        base = next((w for w in view.workloads if w.index == 0), None)
        selector: dict[str, str] = {}
        for flavor in base.flavors if base else ():
            selector |= dict(view.flavors[flavor].labels) if flavor in view.flavors else {}
        manifest = render.workload(
            job, draft, template, queue=request.queue, priority_class=request.priority_class, selector=selector,
            digest=request.shape,
        )  # fmt: skip
        try:
            await self._kube.call("POST", _path(job), f"create Workload {job.namespace}/{draft.name}", manifest)
        except ApiError as error:
            if error.code != 409:  # an earlier attempt made it, and the watch is about to show it
                raise
            return
        log.info("Workload created", job=job.name, workload=draft.name, pods=draft.count)

    async def _write(self, job: JobRef, write: Write) -> None:
        path, what = _path(job, write.name), f"write Workload {job.namespace}/{write.name}"
        try:
            match write:
                case Delete(uid=uid):
                    options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
                    await self._kube.call("DELETE", path, f"delete Workload {write.name}", options)
                case Activate(uid=uid, active=active):
                    note = None if active else "true"
                    meta = {"uid": uid, "annotations": {render.SUSPENDED: note}}
                    change = {"metadata": meta, "spec": {"active": active}}
                    await self._kube.call("PATCH", path, what, change, content=MERGE)
                case Change():
                    await self._kube.call("PATCH", path, what, _changed(write), content=MERGE)
                case Release() | Ready() | Finish():
                    await self._status(path, what, write)
        except ApiError as error:
            if error.code not in (404, 409):  # gone, replaced or changed: the watch shows it
                raise
            log.info("the Workload has changed meanwhile", job=job.name, workload=write.name)
            return
        log.info("Workload written", job=job.name, write=type(write).__name__, workload=write.name)

    async def _status(self, path: str, what: str, write: Release | Ready | Finish) -> None:
        """Read, change, replace that version; again if Kueue was faster. Raises ``ApiError`` (409) after the last."""
        for attempt in range(1, ATTEMPTS + 1):
            body = await self._kube.call("GET", path, what)
            if body["metadata"]["uid"] != write.uid or not _may(body, write):
                return
            try:
                await self._kube.call("PUT", f"{path}/status", what, changed(body, write, clock.now()))
            except ApiError as error:
                if error.code != 409 or attempt == ATTEMPTS:
                    raise
            else:
                return


def _may(body: Mapping[str, Any], write: Release | Ready | Finish) -> bool:
    """Whether the present object still calls for the write."""
    status = body.get("status") or {}
    if isinstance(write, Release):
        return bool(status.get("admission")) and _condition(status, "Evicted").get("status") == "True"
    return not isinstance(write, Ready) or bool(status.get("admission"))


def changed(body: dict[str, Any], write: Release | Ready | Finish, now: datetime) -> dict[str, Any]:
    """A Workload with its new status."""
    generation = body["metadata"].get("generation")
    status = dict(body.get("status") or {})

    def put(kind: str, value: bool, reason: str, message: str) -> None:
        before, truth = _condition(status, kind), "True" if value else "False"
        same = before.get("status") == truth
        made = {
            "type": kind, "status": truth, "reason": reason, "message": message, "observedGeneration": generation,
            "lastTransitionTime": before["lastTransitionTime"] if same else now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip
        status["conditions"] = [c for c in status.get("conditions") or [] if c["type"] != kind] + [made]

    match write:
        case Ready(ready=ready):
            text = "all pods are ready" if ready else "not all pods are ready"
            put("PodsReady", ready, "Started" if ready else "WaitForStart", text)
        case Finish(outcome=outcome):
            put("Finished", True, outcome, "the training job has ended")
        case Release():
            evicted = _condition(status, "Evicted")
            reason, text = evicted.get("reason", "Evicted"), evicted.get("message", "")
            put("Requeued", reason in REQUEUED, reason, text)
            put("QuotaReserved", False, "Pending", text)
            put("Admitted", False, "NoReservation", "The workload has no reservation")
            put("PodsReady", False, "WaitForStart", "no pod exists")
            status.pop("admission", None)
    return {**body, "status": status}


def _condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})


def _changed(write: Change) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if write.queue is not None:
        spec["queueName"] = write.queue
    if write.priority is not None:
        spec["priority"] = write.priority
    if write.priority_class is not None:
        spec["priorityClassRef"] = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": write.priority_class}
    return {"metadata": {"uid": write.uid}, "spec": spec}


def _path(job: JobRef, name: str = "") -> str:
    path = f"/apis/{API_VERSION}/namespaces/{job.namespace}/workloads"
    return f"{path}/{name}" if name else path


PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {
    (GROUP, "workloads"): frozenset({"get", "list", "watch", "create", "patch", "delete"}),
    (GROUP, "workloads/status"): frozenset({"update"}),
    (GROUP, "localqueues"): frozenset({"list", "watch"}),
}
"""(API group, resource) → verbs in the namespaces of jobs; a test compares the chart's role with them."""
CLUSTER_PERMISSIONS: Mapping[tuple[str, str], frozenset[str]] = {
    (GROUP, "clusterqueues"): frozenset({"list", "watch"}),
    (GROUP, "resourceflavors"): frozenset({"list", "watch"}),
    (GROUP, "workloadpriorityclasses"): frozenset({"list", "watch"}),
    ("scheduling.k8s.io", "priorityclasses"): frozenset({"list", "watch"}),
}
"""The same for objects of the whole cluster."""
