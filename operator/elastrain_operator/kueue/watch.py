"""Kueue's objects, kept current by watches: Workloads of jobs, queues, flavors and priority classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from elastrain.api import names
from elastrain_operator.facts import JobRef
from elastrain_operator.kueue import parse
from elastrain_operator.kueue.workload import API_VERSION, Request, View, Workload
from elastrain_resource.reflector import Reflector, Source

RETRY_DELAYS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds until the next attempt: where Kueue is not installed, each list is one refused request in 30 s."""
_OURS = {"labelSelector": names.LABEL_JOB_UID}


class Watch:
    """Kueue as the operator knows it."""

    def __init__(
        self,
        source: Source,
        namespaces: tuple[str, ...],
        on_job: Callable[[str], None],
        on_queues: Callable[[], None],
    ) -> None:
        """``namespaces``: empty: all. ``on_job`` is called with the UID in a changed Workload's label, ``on_queues``
        after a change that concerns all queued jobs."""

        def kept(plural: str, what: str, reads: Callable[[Any], Any], namespace: str = "") -> Reflector[Any]:
            group = f"/apis/{API_VERSION}" if "/" not in plural else f"/apis/{plural.rpartition('/')[0]}"
            path = f"{group}/namespaces/{namespace}" if namespace else group
            ours = plural == "workloads"
            return Reflector(
                source, f"{path}/{plural.rpartition('/')[2]}", what, _OURS if ours else None, parse=reads,
                on_change=self._workload_changed if ours else lambda *_: on_queues(), on_problem=on_queues,
                retry_delays=RETRY_DELAYS,
            )  # fmt: skip

        self._of_job: dict[str, dict[str, Workload]] = {}  # by UID
        self._on_job, self._on_queues = on_job, on_queues
        served = namespaces or ("",)
        self._workloads = [kept("workloads", "Workloads of Kueue", _labelled, n) for n in served]
        self._local = [kept("localqueues", "LocalQueues", parse.local_queue, n) for n in served]
        self._cluster = kept("clusterqueues", "ClusterQueues", parse.is_strict)
        self._flavors = kept("resourceflavors", "ResourceFlavors", parse.flavor)
        self._classes = kept("workloadpriorityclasses", "WorkloadPriorityClasses", _value)
        self._pod_classes = kept("scheduling.k8s.io/v1/priorityclasses", "priority classes", _class)
        self._all = (
            *self._workloads, *self._local, self._cluster, self._flavors, self._classes, self._pod_classes,
        )  # fmt: skip

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(kept.run() for kept in self._all))

    @property
    def problem(self) -> str:
        """Why Kueue is unknown; empty: it is known."""
        for kept in self._all:
            if kept.problem is not None:
                return f"Kueue is unknown ({API_VERSION}): {kept.problem.text}"
            if not kept.listed:
                return f"the {kept.what} are not listed yet"
        return ""

    def workloads(self, job: JobRef) -> tuple[Workload, ...]:
        """The Workloads of a job."""
        return tuple(self._of_job.get(job.uid, {}).values())

    def view(self, job: JobRef, request: Request, pod_class: str) -> View:
        """What concerns one job. ``pod_class``: the ``priorityClassName`` of its template."""
        key = f"{job.namespace}/{request.queue}"
        queue = next((kept.values[key] for kept in self._local if key in kept.values), None)
        strict = {name.lstrip("/"): value for name, value in self._cluster.values.items()}
        return View(
            problem=self.problem,
            workloads=self.workloads(job),
            queue=parse.queue(queue, strict),
            flavors={name.lstrip("/"): value for name, value in self._flavors.values.items()},
            priority=self._priority(request.priority_class, pod_class),
        )

    def _priority(self, name: str, pod_class: str) -> int | None:
        if name:
            value: int | None = self._classes.values.get(f"/{name}")
            return value
        classes = self._pod_classes.values
        if found := classes.get(f"/{pod_class}"):
            return int(found[0])
        return next((value for value, is_default in classes.values() if is_default), 0)

    def _workload_changed(self, key: str, before: Any, after: Any) -> None:
        """The label may have changed: then both jobs' Workloads have."""
        for uid in {seen[0] for seen in (before, after) if seen}:
            kept = self._of_job.setdefault(uid, {})
            kept.pop(key, None)
            if after and after[0] == uid:
                kept[key] = after[1]
            if not kept:
                del self._of_job[uid]
            self._on_job(uid)


def _labelled(body: Mapping[str, Any]) -> tuple[str, Workload]:
    """UID of its job, and the Workload."""
    return parse.label(body, names.LABEL_JOB_UID), parse.workload(body)


def _value(body: Mapping[str, Any]) -> int:
    return int(body.get("value") or 0)


def _class(body: Mapping[str, Any]) -> tuple[int, bool]:
    return int(body.get("value") or 0), bool(body.get("globalDefault"))
