"""Executes plans: the only writer to the API server, and through the mirror to etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdDenied, EtcdError
from elastrain_operator import clock
from elastrain_operator.config import OperatorConfig
from elastrain_operator.facts import Deletion, EndedMember, JobEvent, JobRef, Pod, RefusalKind, Still
from elastrain_operator.job import objects
from elastrain_operator.job.queue import JobQueue
from elastrain_operator.job.recorder import Recorder
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.job.statuses import Statuses
from elastrain_operator.kube.answers import CLOSED, NO_ANSWER, ApiError, Refused, is_without_answer, refused
from elastrain_operator.kube.client import Kube
from elastrain_operator.pod import manifest as manifests
from elastrain_operator.pod import workerset
from elastrain_operator.pod.admitted import Admitted, admitted
from elastrain_operator.pod.template import version
from elastrain_operator.raw import text
from elastrain_operator.records import logins
from elastrain_operator.records.logins import JobLogins
from elastrain_operator.records.mirror import Mirror
from elastrain_operator.watch import parse
from elastrain_operator.watch.owner import owner
from elastrain_resource.job import JobSpec

_CHANGED = {Still.NOT_READY: parse.is_ready, Still.NOT_STARTED: parse.has_started}
"""What must not be true of a pod that is deleted only if it is still as it was seen."""
_BESIDE = -1
"""In the place of an ordinal: what is written beside the pods."""
PARALLEL = 16
"""Concurrent creations of one job's pods, and concurrent deletions."""

log = structlog.get_logger(__name__)


class Executor:
    """Executes plans against one API server."""

    def __init__(  # noqa: PLR0917 - its collaborators
        self,
        kube: Kube,
        targets: Mirror,
        config: OperatorConfig,
        events: Recorder,
        logins: JobLogins | None = None,
        queue: JobQueue | None = None,
    ) -> None:
        """``logins``: gives jobs their own credentials; None: they have none. ``queue``: None: no job queues."""
        self._kube = kube
        self._logins = logins
        self._queue = queue
        self._targets = targets
        self._config = config
        self._events = events
        self._deletions = asyncio.Semaphore(PARALLEL)
        self._sets = objects.WorkerSets(kube, everywhere=not config.namespaces)
        self._gangs = objects.Gangs(kube, config.gang_scheduler) if config.gang_scheduler != "none" else None
        self.statuses = Statuses(kube, events)

    async def execute(self, job: JobRef, spec: JobSpec | None, plan: Plan, state: LoopState) -> None:
        """Execute ``plan`` in this order, and stop at the first failed call (the next pass plans it again):

        1. leases of members whose processes have ended: survivors wait for this; where it fails, they expire;
        2. the job's label; then status: it records a loss before the pod is deleted, and an ordinal before it names a
           pod. Where the API server refuses this status, only what needs no record of it follows;
        3. beside each other, since a webhook that hangs keeps no room: creations; the disruption budget; the target,
           and after it the deletions: a leaving worker reads it before its pod is deleted;
        4. deletion of the job. ``spec`` may be None if no pod is created. Events are sent later, by the recorder.

        Raises ``ApiError`` (code 409: the job has changed, or another operator has written its status) and
        ``EtcdError``. A pod that the API server refuses is not an error but a :class:`Refusal`.
        """
        if plan.ended:
            await self._end_leases(job, plan.ended)
        first = self._first(job, spec, plan) if spec is not None else None
        if plan.status is not None:
            refused = await self.statuses.write(job, plan.status, state)
            if refused is not None:
                await _all(self._unrecorded(job, spec, plan, state))
                raise refused
        for uid in plan.departed:  # the status contains their loss
            state.disappeared.pop(uid, None)
        state.alive.difference_update(d.uid for d in plan.delete)
        state.open_ordinals = tuple(
            sorted({*state.open_ordinals, *plan.create})
        )  # until their pods exist: the next calls may fail
        for event in plan.events:
            self._events.record(job, event)
        await _all(self._changes(job, first, spec, plan, state))
        if plan.delete_job:
            log.info("deleting job", job=_name(job), why="ttlSecondsAfterFinished")
            await self._kube.delete_job(job.namespace, job.name, job.uid)

    async def _end_leases(self, job: JobRef, ended: Sequence[EndedMember]) -> None:
        members = [member.id for member in ended]
        try:
            await self._targets.end_leases([member.lease for member in ended])
        except (ApiError, EtcdError) as error:
            log.warning(
                "leases of ended workers expire by themselves", job=_name(job), members=members, error=str(error)
            )
        else:
            log.info("ended the leases of ended workers", job=_name(job), members=members)

    def _changes(
        self, job: JobRef, first: _Manifest | None, spec: JobSpec | None, plan: Plan, state: LoopState
    ) -> list[Awaitable[None]]:
        """What does not depend on each other."""
        changes: list[Awaitable[None]] = []
        if spec is not None and first is not None:
            if plan.create:
                changes.append(self._create(job, spec, first, plan, state))
            else:
                changes.append(self._probe(job, spec, first, state))
        if plan.target is not None or plan.delete:
            changes.append(self._aim(job, plan))
        return [*changes, *self._beside(job, spec, plan, state)]

    def _unrecorded(self, job: JobRef, spec: JobSpec | None, plan: Plan, state: LoopState) -> list[Awaitable[None]]:
        """What is safe without a record in the status: no pod comes or goes, and none is asked to leave."""
        keeps_all = plan.target is not None and plan.target.desired > 0 and not plan.target.leaving
        aims = [self._aim(job, replace(plan, delete=()))] if keeps_all else []
        return [*aims, *self._beside(job, spec, plan, state)]

    def _beside(self, job: JobRef, spec: JobSpec | None, plan: Plan, state: LoopState) -> list[Awaitable[None]]:
        """What stands beside the pods."""
        changes: list[Awaitable[None]] = []
        if plan.marks:
            changes.append(objects.write_marks(self._kube, job, plan.marks, state))
        if plan.budget is not None:
            changes.append(objects.write_budget(self._kube, job, plan.budget, state))
        if plan.workers is not None and not plan.create:  # else before the pods
            changes.append(self._sets.keep(job, plan.workers, state))
        if self._gangs is not None and plan.gang is not None and spec is not None and not plan.create:
            changes.append(self._gangs.follow(job, spec, state, wanted=plan.gang))
        return changes

    async def _aim(self, job: JobRef, plan: Plan) -> None:
        if plan.target is not None:
            await self._targets.put_target(JobKeys(job.namespace, job.name, job.uid), plan.target)
            log.info("target", job=_name(job), **plan.target.model_dump(mode="json"))
        if plan.delete:
            await _all([self._delete_one(job, deletion) for deletion in plan.delete])

    async def keep_in_etcd(self, job: JobRef, pods: Sequence[Pod]) -> None:
        """Have the job's records name this cluster, and its live ``pods`` able to log in. Raises ``ApiError``
        and ``EtcdError``."""
        await self._targets.adopt(JobKeys(job.namespace, job.name, job.uid))
        if self._logins is not None and any(not pod.over for pod in pods):
            await self._logins.keep(job, live=True, wait_long=logins.wait_long(pods, clock.now()))

    # ---- pods ------------------------------------------------------------------------------------------------------
    def _first(self, job: JobRef, spec: JobSpec, plan: Plan) -> _Manifest | None:
        """The first pod to create, or the one to ask about, or why it has no manifest; None: there is no such pod."""
        ordinal = plan.create[0] if plan.create else plan.probe
        return None if ordinal is None else self._rendered(job, spec, ordinal, plan)

    async def _create(self, job: JobRef, spec: JobSpec, first: _Manifest, plan: Plan, state: LoopState) -> None:
        results = await self._created_or_refused(job, spec, first, plan, state)
        created = [r for r in results.values() if isinstance(r, Pod)]
        if created:
            log.info("created pods", job=_name(job), pods=[pod.name for pod in created])
        refusals = [r for r in results.values() if isinstance(r, Refused)]
        used_up = {n for n, result in results.items() if _uses_up_its_ordinal(result)}
        before = state.refusal.attempts if state.refusal and not created else 0
        state.created.update({pod.uid: (pod, clock.now()) for pod in created})
        state.open_ordinals = tuple(n for n in state.open_ordinals if n not in used_up)
        state.refusal = refusals[0].as_refusal(job, before + 1, clock.now()) if refusals else None
        # A start has one event: TargetSet instead of the names of the first pods.
        announced = any(event.reason == "TargetSet" for event in plan.events)
        if created and not announced:
            self._events.record(job, JobEvent("WorkersCreated", f"created {', '.join(p.name for p in created)}"))
        for result in results.values():
            if isinstance(result, (ApiError, EtcdError)):
                raise result

    async def _created_or_refused(
        self, job: JobRef, spec: JobSpec, rendered: _Manifest, plan: Plan, state: LoopState
    ) -> dict[int, _Result]:
        """By ordinal. Before the pods come their set, their gang and their credentials. If an earlier operator has
        written the last, they are written again beside the pods, which wait for a Secret that was deleted."""
        first, has_issued = plan.create[0], self._logins is not None and self._logins.has_issued(job)
        found: Refused | ApiError | EtcdError | None = None
        if plan.workers is not None:
            await objects.write_workers(self._kube, job, plan.workers, state)
        if self._gangs:
            found = await self._gangs.keep(job, spec, state)
        if found is None and not has_issued:
            found = await self._credentials(job)
        made = found or rendered
        if not isinstance(made, dict):
            return {first: made}
        made = self._gangs.mark(made, job, state) if self._gangs else made
        made = workerset.controlled(made, job, state.workers.uid) if state.workers else made
        pods = self._created(job, spec, made, plan)
        if not has_issued:
            return await pods
        results, found = await asyncio.gather(pods, self._credentials(job))
        return results if found is None else {**results, _BESIDE: found}

    async def _created(self, job: JobRef, spec: JobSpec, made: dict[str, Any], plan: Plan) -> dict[int, _Result]:
        """The first pod is created alone, so that a refusal is not repeated a hundred times; one of its name is its
        own."""
        first, *others = plan.create
        limit = asyncio.Semaphore(PARALLEL)
        result = await self._create_one(job, self._placed(made, job, spec, plan, 0), limit)
        if not isinstance(result, Pod) and not _uses_up_its_ordinal(result):
            return {first: result}
        siblings = (
            self._placed(manifests.sibling(made, job, n, stands_by=n in plan.stand_by), job, spec, plan, place)
            for place, n in enumerate(others, start=1)
        )
        more = await asyncio.gather(*(self._create_one(job, manifest, limit) for manifest in siblings))
        return {first: result, **dict(zip(others, more, strict=True))}

    def _placed(self, manifest: dict[str, Any], job: JobRef, spec: JobSpec, plan: Plan, number: int) -> dict[str, Any]:
        """The manifest of the pod that is created as this ``number``, with its places in a group and in a queue."""
        if plan.slots:
            manifest = manifests.grouped(manifest, job, spec, plan.slots[number])
        return self._queue.charged_to(manifest, plan.charges[number]) if self._queue and plan.charges else manifest

    async def _probe(self, job: JobRef, spec: JobSpec, made: _Manifest, state: LoopState) -> None:
        """Ask the API server whether it admits a pod of the job, before other jobs' workers leave for it."""
        answer: Refused | ApiError | None = made if isinstance(made, Refused) else None
        known = Admitted(version(spec.template), clock.now())
        if not isinstance(made, Refused):
            try:
                known = admitted(known.version, made, await self._kube.try_pod(job.namespace, made), known.at)
            except ApiError as error:
                # Without an answer, the first real pod shows whether it is admitted.
                answer = None if is_without_answer(error.status) else _answer(error)
        if isinstance(answer, ApiError):
            raise answer
        if answer is not None and answer.kind is not RefusalKind.NAME_TAKEN:
            attempts = state.refusal.attempts if state.refusal else 0
            state.refusal = answer.as_refusal(job, attempts + 1, clock.now())
            return
        state.admitted, state.refusal = known, None

    async def _credentials(self, job: JobRef) -> Refused | ApiError | EtcdError | None:
        """Why workers cannot get their etcd credentials; None: they have them."""
        if self._logins is None:
            return None
        try:
            await self._logins.keep(job, creating=True)
        except EtcdDenied as error:
            return Refused(RefusalKind.ETCD_DENIED, str(error))
        except ApiError as error:
            return error if error.is_transient else Refused(RefusalKind.CREDENTIALS, str(error))
        except EtcdError as error:
            return error
        return None

    def _rendered(self, job: JobRef, spec: JobSpec, ordinal: int, plan: Plan) -> _Manifest:
        """The manifest, or why there is none. One that is only asked about avoids no node: the answer outlives that."""
        try:
            is_spare, slot = ordinal in plan.stand_by, plan.slots[0] if plan.slots else None
            keep_off = plan.keep_off if plan.create else ()
            return manifests.pod(job, spec, ordinal, self._config, keep_off, stands_by=is_spare, slot=slot)
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
        made = _created(body)
        if isinstance(made, Refused):  # it is no worker, and its name tells no later pass that it exists
            meta = body["metadata"]
            await self._kube.delete_pod(job.namespace, meta["name"], meta["uid"])
        return made

    async def _found(self, job: JobRef, manifest: Mapping[str, Any], answer: Refused) -> Pod | Refused | ApiError:
        """The job's existing pod of that name: then the response to an earlier creation was lost."""
        name = manifest["metadata"]["name"]
        try:
            body = await self._kube.get_pod(job.namespace, name)
        except ApiError as error:
            return error
        if body is None:
            return Refused(RefusalKind.BUSY, f"a pod {name} existed, which is gone by now")
        if owner(body) != JobKeys(job.namespace, job.name, job.uid):
            return answer
        return _created(body)

    async def _delete_one(self, job: JobRef, deletion: Deletion) -> None:
        async with self._deletions:
            version = None
            if (changed := _CHANGED.get(deletion.still)) is not None:
                body = await self._kube.get_pod(job.namespace, deletion.pod)
                if body is None or changed(body):
                    return  # a watch shows it, and a next pass decides
                version = body["metadata"]["resourceVersion"]
            await self._kube.delete_pod(job.namespace, deletion.pod, deletion.uid, version)
        log.info("deleted pod", job=_name(job), pod=deletion.pod, why=deletion.why)


async def _all(calls: Sequence[Awaitable[None]]) -> None:
    """Wait for all of them; then raise the first error, if there is one."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if result is not None:
            raise result


def _created(body: Mapping[str, Any]) -> Pod | Refused:
    pod = parse.pod(body, clock.now())
    if pod is not None:
        return pod
    name = text(body["metadata"].get("name"))
    cause = f"admission has changed the name or controller of the pod, now {name}: it is no worker, and is deleted"
    return Refused(RefusalKind.ADMISSION_DENIED, cause)


def _uses_up_its_ordinal(result: _Result) -> bool:
    return isinstance(result, Pod) or (isinstance(result, Refused) and result.kind is RefusalKind.NAME_TAKEN)


def _answer(error: ApiError) -> Refused | ApiError:
    """The refusal of a pod; the error itself if the API server could not be asked."""
    if error.reason == NO_ANSWER:
        return Refused(RefusalKind.BUSY, f"{error.message}: it is overloaded, or an admission webhook hangs")
    if error.reason == CLOSED:
        return Refused(RefusalKind.BUSY, error.message)
    return error if error.code in {0, 401} else refused(error.status)


_Manifest = dict[str, Any] | Refused
"""The manifest of a pod, or why there is none."""
_Result = Pod | Refused | ApiError | EtcdError
"""Result of an attempt to create a pod; an error is worth another attempt."""


def _name(job: JobRef) -> str:
    return f"{job.namespace}/{job.name}"
