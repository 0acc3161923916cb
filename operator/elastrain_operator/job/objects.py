"""Writes what stands beside a job's pods: the disruption budget, the marks for autoscalers, the set of workers, the
gang.

A failure is logged, stands in a condition, and stops no other write. It is repeated in a pass after :data:`RETRY`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import structlog

from elastrain.api import names
from elastrain_operator import clock
from elastrain_operator.facts import DisruptionBudget, Gang, JobRef, Mark, RefusalKind, WorkerCount, WorkerSet
from elastrain_operator.job.state import BUDGET, GANG, MARKS, SET, LoopState
from elastrain_operator.kube.answers import ApiError, Refused
from elastrain_operator.kube.client import Kube, pods_path
from elastrain_operator.pod import workerset
from elastrain_operator.pod.defaults import evictable
from elastrain_operator.pod.gang import SCHEDULERS
from elastrain_operator.pod.manifest import owned
from elastrain_resource.job import JobSpec

RETRY = timedelta(seconds=60)
"""Time between a failed write and its next attempt, also after an answer that an API is not served."""

log = structlog.get_logger(__name__)


async def _attempt(what: str, job: JobRef, state: LoopState, write: Callable[[], Awaitable[None]]) -> bool:
    """Whether the write succeeded now."""
    if what in state.retries and clock.now() < state.retries[what]:
        return False
    try:
        await write()
    except ApiError as error:
        state.retries[what] = clock.now() + RETRY
        if error.code:  # else the API server has said nothing
            state.unwritten[what] = str(error)
        log.warning(f"{what} not written", job=f"{job.namespace}/{job.name}", error=str(error))
        return False
    state.retries.pop(what, None)
    state.unwritten.pop(what, None)
    return True


# ---- disruption budget ---------------------------------------------------------------------------------------------
async def write_budget(kube: Kube, job: JobRef, budget: DisruptionBudget, state: LoopState) -> None:
    """Write or delete a job's PodDisruptionBudget, and note that in ``state``. One of the user's own replaces it, as
    Kubernetes evicts no pod that two budgets select; that is looked at again with each attempt."""
    manifest = budget_manifest(job, budget)
    name = manifest["metadata"]["name"]
    folder = f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets"

    async def write() -> None:
        if budget.ordinals and not (own := await _budget_of_the_user(kube, job, folder)):
            await kube.apply(f"{folder}/{name}", manifest)
            return
        await kube.remove(f"{folder}/{name}", f"delete disruption budget {job.namespace}/{name}")
        if budget.ordinals:
            text = f"PodDisruptionBudget {own} selects its workers, and replaces the operator's"
            raise ApiError("write the job's disruption budget", 409, "Replaced", text)

    if await _attempt(BUDGET, job, state, write):
        state.budget = budget


async def _budget_of_the_user(kube: Kube, job: JobRef, folder: str) -> str:
    """A disruption budget, not the operator's, that selects workers of the job; empty: there is none."""
    others = {"labelSelector": f"!{names.LABEL_JOB_UID}"}
    async for items, _ in kube.list_pages(folder, "list disruption budgets", others):
        for item in items:
            if (chosen := item["spec"].get("selector")) is None:
                continue  # it selects nothing
            query = {"labelSelector": ",".join((f"{names.LABEL_JOB_UID}={job.uid}", *_terms(chosen)))}
            if await kube.uids(pods_path(job.namespace), "list workers of a disruption budget", query):
                return str(item["metadata"]["name"])
    return ""


def _terms(selector: Mapping[str, Any]) -> Iterator[str]:
    """A label selector as the terms of a query."""
    yield from (f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items())
    for each in selector.get("matchExpressions") or ():
        values = f"({','.join(each.get('values') or ())})"
        forms = {"In": "{} in {}", "NotIn": "{} notin {}", "Exists": "{}", "DoesNotExist": "!{}"}
        yield forms[each["operator"]].format(each["key"], values)


def budget_manifest(job: JobRef, budget: DisruptionBudget) -> dict[str, Any]:
    """The budget for server-side apply. The garbage collector deletes it with the job."""
    chosen = {"key": names.LABEL_ORDINAL, "operator": "In", "values": [str(n) for n in budget.ordinals]}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned(job, f"{job.name}-state-{job.uid[:8]}"),  # a job's name has at most 50 characters
        "spec": {
            "minAvailable": budget.least,
            "selector": {"matchLabels": {names.LABEL_JOB_UID: job.uid}, "matchExpressions": [chosen]},
        },
    }


# ---- marks for autoscalers -----------------------------------------------------------------------------------------
async def write_marks(kube: Kube, job: JobRef, marks: tuple[Mark, ...], state: LoopState) -> None:
    """Annotate the workers."""

    async def write() -> None:
        for mark in marks:
            await kube.annotate_pod(job.namespace, mark.pod, mark.uid, evictable(keep=mark.keep))

    await _attempt(MARKS, job, state, write)


# ---- the set of workers --------------------------------------------------------------------------------------------
class WorkerSets:
    """The sets of all jobs' workers."""

    def __init__(self, kube: Kube, *, everywhere: bool) -> None:
        """``everywhere``: in all namespaces, which one request lists."""
        self._kube, self._everywhere = kube, everywhere
        self._former: dict[str, dict[str, WorkerSet]] = {}
        self._listing = asyncio.Lock()

    async def keep(self, job: JobRef, count: WorkerCount, state: LoopState) -> None:
        """Have the set of a job that has its pods count them, without a request if an earlier operator has left it
        so."""
        if state.workers is None and (left := (await self._left(job.namespace)).get(workerset.path(job))):
            state.workers = left
            if left.number == count.number:
                return
        await write_workers(self._kube, job, count, state)

    async def _left(self, namespace: str) -> dict[str, WorkerSet]:
        """By path. Read once; those that cannot be read are written again."""
        place = "" if self._everywhere else namespace
        async with self._listing:
            if place not in self._former:
                try:
                    self._former[place] = await self._listed(place)
                except ApiError as error:
                    self._former[place] = {}
                    log.warning("sets of workers not listed", namespace=place or "all", error=str(error))
        return self._former[place]

    async def _listed(self, namespace: str) -> dict[str, WorkerSet]:
        found: dict[str, WorkerSet] = {}
        async for items, _ in self._kube.list_pages(workerset.all_in(namespace), "list sets of workers", {}):
            for item in items:
                meta, number = item["metadata"], item["spec"]["replicas"]
                found[f"{workerset.all_in(meta['namespace'])}/{meta['name']}"] = WorkerSet(meta["uid"], number)
        return found


async def write_workers(kube: Kube, job: JobRef, count: WorkerCount, state: LoopState) -> None:
    """Write the job's set of workers. Until it can be written, new pods have the job itself as their controller."""

    async def write() -> None:
        uid = await kube.apply(workerset.path(job), workerset.manifest(job, count.number))
        if (pod := count.touched) is not None:
            await kube.annotate_pod(job.namespace, pod.name, pod.uid, {names.COUNTED_NOTE: str(count.number)})
        state.workers = WorkerSet(uid, count.number)

    await _attempt(SET, job, state, write)


# ---- gangs ---------------------------------------------------------------------------------------------------------
class Gangs:
    """The gangs of all jobs, for one scheduler (``pod/gang.py``): before a pod names its gang, that exists."""

    def __init__(self, kube: Kube, scheduler: str) -> None:
        self._kube, self._name, self._scheduler = kube, scheduler, SCHEDULERS[scheduler]

    async def keep(self, job: JobRef, spec: JobSpec, state: LoopState) -> Refused | ApiError | None:
        """Have the object of a job that has workers equal its spec; without a change no call is made. Returns why pods
        that name their group cannot be created; an ``ApiError`` is worth another attempt."""
        if not self._scheduler.serves(spec.template):
            state.gang = state.gang or Gang()
            return await self.drop(job, state)
        wanted, before = self._scheduler.manifest(job, spec), state.gang
        if before and before.manifest == wanted and not _is_due(before):
            return None
        try:
            await self._apply(job, wanted)
        except ApiError as error:
            return self._failed(error, wanted, state)
        state.gang = Gang(wanted, written=True)
        log.info(
            "gang", job=f"{job.namespace}/{job.name}", scheduler=self._name, min=spec.min_replicas * spec.group_size
        )
        return None

    async def drop(self, job: JobRef, state: LoopState) -> ApiError | None:
        """Remove the object of a job that has and wants no workers, or uses another scheduler."""
        if state.gang is None or state.gang.written:
            try:
                await self._remove(job)
            except ApiError as error:
                return error
        state.gang = Gang()
        return None

    async def follow(self, job: JobRef, spec: JobSpec, state: LoopState, *, wanted: bool) -> None:
        """Keep or drop the object in a pass that creates no pod."""

        async def write() -> None:
            found = await (self.keep(job, spec, state) if wanted else self.drop(job, state))
            if isinstance(found, Refused):
                raise ApiError("write the job's gang", 0, found.kind, found.message)
            if found is not None:
                raise found

        await _attempt(GANG, job, state, write)

    def mark(self, pod: dict[str, Any], job: JobRef, state: LoopState) -> dict[str, Any]:
        """``pod``, a manifest, with its reference to the group, if there is one."""
        return self._scheduler.mark(pod, job) if state.gang and state.gang.written else pod

    async def _apply(self, job: JobRef, wanted: Mapping[str, Any]) -> None:
        try:
            await self._kube.apply(self._scheduler.path(job), wanted)
        except ApiError as error:
            if error.code != 422 or not self._scheduler.immutable:
                raise
            await self._remove(job)
            await self._kube.apply(self._scheduler.path(job), wanted)

    async def _remove(self, job: JobRef) -> None:
        await self._kube.remove(self._scheduler.path(job), f"delete {self._scheduler.kind} of job {job.name}")

    def _failed(self, error: ApiError, wanted: dict[str, Any], state: LoopState) -> Refused | ApiError | None:
        scheduler = self._scheduler
        if error.code == 404:  # of the kind: an apply finds no object missing
            text = f"the API server does not serve {scheduler.kind} of {scheduler.api} (gang.scheduler: {self._name})"
            state.gang = Gang(wanted, problem=text, retry=clock.now() + RETRY)
            return None
        if error.is_transient:
            return error
        kind = RefusalKind.NOT_PERMITTED if error.code == 403 else RefusalKind.OTHER
        return Refused(kind, f"{scheduler.kind} of the job's gang: {error.message}")


def _is_due(gang: Gang) -> bool:
    return gang.retry is not None and clock.now() >= gang.retry
