"""Executes plans: the only writer to the API server, and through the mirror to etcd."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, Protocol

import structlog

from elastrain.api import names
from elastrain.api.job import JobSpec, JobStatus
from elastrain.api.keys import JobKeys
from elastrain.api.records import PHASES, Target
from elastrain.etcd import EtcdDenied, EtcdError
from elastrain_operator import clock
from elastrain_operator.apply import budget as budgets
from elastrain_operator.apply.credentials import Vault
from elastrain_operator.config import OperatorConfig
from elastrain_operator.kube.client import Kube
from elastrain_operator.kube.errors import NO_ANSWER, ApiError
from elastrain_operator.kube.refusals import Refused, refused
from elastrain_operator.model import JobEvent, JobRef, LoopState, Plan, Pod, RefusalKind, Severity
from elastrain_operator.observe import parse
from elastrain_operator.pod import manifest as manifests
from elastrain_operator.tracing import Traces

PARALLEL = 16
"""Concurrent creations of one job's pods, and concurrent deletions."""

log = structlog.get_logger(__name__)


class Targets(Protocol):
    """Where targets are published: :class:`elastrain_operator.observe.records.Mirror`."""

    async def put_target(self, keys: JobKeys, target: Target) -> None: ...


class Executor:
    """Executes plans against one API server."""

    def __init__(
        self,
        kube: Kube,
        targets: Targets,
        config: OperatorConfig,
        vault: Vault | None = None,
        traces: Traces | None = None,
    ) -> None:
        """``vault``: gives jobs their own credentials; None: they have none. ``traces``: None: no traces."""
        self._traces = traces
        self._kube = kube
        self._vault = vault
        self._targets = targets
        self._config = config
        self._deletions = asyncio.Semaphore(PARALLEL)

    async def execute(self, job: JobRef, spec: JobSpec | None, plan: Plan, state: LoopState) -> None:
        """Execute ``plan`` in this order, and stop at the first failed call (the next pass plans it again):

        1. status: it records a loss before the pod is deleted, and an ordinal before it names a pod;
        2. target: a leaving worker reads it before its pod is deleted; 3. events; 4. disruption budget;
        5. creations; 6. deletions; 7. deletion of the job. ``spec`` may be None if no pod is created.

        Raises ``ApiError`` (code 409: the job has changed, or another operator has written its status) and
        ``EtcdError``. A pod that the API server refuses is not an error but a :class:`Refusal`.
        """
        if plan.status is not None:
            patch = status_patch(plan.status)
            state.version = await self._kube.patch_status(job.namespace, job.name, patch, state.version)
            state.status, state.status_written = plan.status, clock.now()
            if self._traces is not None:
                self._traces.seen(job, plan.status)
        state.unborn = tuple(sorted({*state.unborn, *plan.create}))  # until their pods exist: the next calls may fail
        if plan.target is not None:
            with self._span(job, "operator.put_target", desired=plan.target.desired, reason=plan.target.reason):
                await self._targets.put_target(JobKeys(job.namespace, job.name, job.uid), plan.target)
            log.info("target", job=_name(job), **plan.target.model_dump(mode="json"))
        for event in plan.events:
            await self._record(job, event)
        if plan.budget is not None:
            await budgets.write(self._kube, job, plan.budget, state)
        if plan.create and spec is not None:
            with self._span(job, "operator.create_pods", pods=len(plan.create)):
                await self._create(job, spec, plan, state)
        if plan.delete:
            with self._span(job, "operator.delete_pods", pods=len(plan.delete)):
                await asyncio.gather(*(self._delete(job, d.pod, d.uid, d.why) for d in plan.delete))
        if plan.delete_job:
            log.info("deleting job", job=_name(job), why="ttlSecondsAfterFinished")
            await self._kube.delete_job(job.namespace, job.name, job.uid)

    async def keep_credentials(self, job: JobRef) -> None:
        """Ensure that the pods of a job can log in to etcd. Raises ``ApiError`` and ``EtcdError``."""
        if self._vault is not None:
            await self._vault.keep(job, live=True)

    def _span(self, job: JobRef, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        return nullcontext() if self._traces is None else self._traces.span(job, name, **attributes)

    # ---- pods ------------------------------------------------------------------------------------------------------
    async def _create(self, job: JobRef, spec: JobSpec, plan: Plan, state: LoopState) -> None:
        """Create the first pod alone, so that a refusal is not repeated a hundred times."""
        ordinals = plan.create
        first, *others = ordinals
        made = await self._obstacle(job) or self._rendered(job, spec, first, plan)
        limit = asyncio.Semaphore(PARALLEL)
        results: dict[int, _Result] = {
            first: await self._create_one(job, made, limit) if isinstance(made, dict) else made
        }
        if isinstance(made, dict) and isinstance(results[first], Pod):
            siblings = (manifests.sibling(made, job, n, stands_by=n in plan.stand_by) for n in others)
            more = await asyncio.gather(*(self._create_one(job, manifest, limit) for manifest in siblings))
            results.update(zip(others, more, strict=True))
        created = [r for r in results.values() if isinstance(r, Pod)]
        if created:
            log.info("created pods", job=_name(job), pods=[pod.name for pod in created])
        refusals = [r for r in results.values() if isinstance(r, Refused)]
        used_up = {n for n, result in results.items() if _uses_up_its_ordinal(result)}
        before = state.refusal.attempts if state.refusal and not created else 0
        state.created.update({pod.uid: (pod, clock.now()) for pod in created})
        state.unborn = tuple(n for n in state.unborn if n not in used_up)
        state.refusal = refusals[0].as_refusal(job, before + 1, clock.now()) if refusals else None
        # A start has one event: TargetSet instead of the names of the first pods.
        announced = any(event.reason == "TargetSet" for event in plan.events)
        if created and not announced:
            await self._record(job, JobEvent("WorkersCreated", f"created {', '.join(p.name for p in created)}"))
        for result in results.values():
            if isinstance(result, (ApiError, EtcdError)):
                raise result

    async def _obstacle(self, job: JobRef) -> Refused | ApiError | EtcdError | None:
        """Why pods cannot get their etcd credentials; None: they have them, or need none."""
        if self._vault is None:
            return None
        try:
            await self._vault.keep(job, creating=True)
        except EtcdDenied as error:
            return Refused(RefusalKind.ETCD_DENIED, str(error))
        except ApiError as error:
            return error if error.is_transient else Refused(RefusalKind.CREDENTIALS, str(error))
        except EtcdError as error:
            return error
        return None

    def _rendered(self, job: JobRef, spec: JobSpec, ordinal: int, plan: Plan) -> dict[str, Any] | Refused:
        """The manifest, or why there is none."""
        try:
            return manifests.pod(job, spec, ordinal, self._config, plan.keep_off, stands_by=ordinal in plan.stand_by)
        except manifests.TemplateInvalid as error:
            return Refused(RefusalKind.TEMPLATE_INVALID, str(error))

    async def _create_one(
        self, job: JobRef, manifest: Mapping[str, Any], limit: asyncio.Semaphore
    ) -> Pod | Refused | ApiError:
        """The pod, or why there is none."""
        try:
            async with limit:
                body = await self._kube.create_pod(job.namespace, manifest)
        except ApiError as error:
            answer = _answer(error)
            if isinstance(answer, Refused) and answer.kind is RefusalKind.NAME_TAKEN:
                return await self._found(job, manifest, answer)
            return answer
        return _created(body)

    async def _found(self, job: JobRef, manifest: Mapping[str, Any], answer: Refused) -> Pod | Refused | ApiError:
        """The job's existing pod of that name: then the response to an earlier creation was lost."""
        name = manifest["metadata"]["name"]
        try:
            body = await self._kube.get_pod(job.namespace, name)
        except ApiError as error:
            return error
        if body is None:
            return Refused(RefusalKind.BUSY, f"a pod {name} existed, which is gone by now")
        owners = body.get("metadata", {}).get("ownerReferences") or []
        if not any(o.get("uid") == job.uid for o in owners):
            return answer
        return _created(body)

    async def _delete(self, job: JobRef, pod: str, uid: str, why: str) -> None:
        async with self._deletions:
            await self._kube.delete_pod(job.namespace, pod, uid)
        log.info("deleted pod", job=_name(job), pod=pod, why=why)

    # ---- events ----------------------------------------------------------------------------------------------------
    async def _record(self, job: JobRef, event: JobEvent) -> None:
        """Record an event. A failure is only logged."""
        written = log.warning if event.severity is Severity.WARNING else log.info
        written(event.message, job=_name(job), event_reason=event.reason)
        try:
            await self._kube.create_event(job.namespace, event_body(job, event, clock.now()))
        except ApiError as error:
            log.warning("event not recorded", job=_name(job), event_reason=event.reason, error=str(error))


def _created(body: Mapping[str, Any]) -> Pod:
    pod = parse.pod(body)
    assert pod is not None, "a pod that we rendered has our labels"
    return pod


def _uses_up_its_ordinal(result: _Result) -> bool:
    return isinstance(result, Pod) or (isinstance(result, Refused) and result.kind is RefusalKind.NAME_TAKEN)


def _answer(error: ApiError) -> Refused | ApiError:
    """The refusal of a pod; the error itself if the API server could not be asked."""
    if error.reason == NO_ANSWER:
        return Refused(RefusalKind.BUSY, f"{error.message}: it is overloaded, or an admission webhook hangs")
    return error if error.code in {0, 401} else refused(error.status)


_Result = Pod | Refused | ApiError | EtcdError
"""Result of an attempt to create a pod; an error is worth another attempt."""


def status_patch(status: JobStatus) -> dict[str, Any]:
    """A merge patch that makes a stored status equal to ``status``: absent fields of objects become null, which removes
    them; in lists, which are replaced as a whole, they are left out."""
    wire = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    patch = _with_nulls(status.model_dump(mode="json", by_alias=True), wire)
    if status.last_rescale is not None:  # remove the phases of an earlier, unplanned rescale
        patch["lastRescale"]["phases"] = dict.fromkeys(PHASES) | patch["lastRescale"]["phases"]
    return patch


def _with_nulls(whole: Mapping[str, Any], wire: Mapping[str, Any]) -> dict[str, Any]:
    """``wire``, with a null for each field that only ``whole`` has."""
    return {
        name: _with_nulls(value, wire[name]) if isinstance(value, dict) and name in wire else wire.get(name)
        for name, value in whole.items()
    }


def event_body(job: JobRef, event: JobEvent, now: datetime) -> dict[str, Any]:
    """A core/v1 event on the job."""
    stamp = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "reason": event.reason,
        "message": event.message,
        "type": event.severity.value,
        "source": {"component": "elastrain-operator"},
        "reportingComponent": f"{names.GROUP}/operator",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def _name(job: JobRef) -> str:
    return f"{job.namespace}/{job.name}"
