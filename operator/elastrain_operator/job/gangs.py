"""Writes the gangs of jobs for their scheduler (``pod/gang.py``): before a pod names its group, the group exists."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import structlog

from elastrain.api.job import JobSpec
from elastrain_operator import clock
from elastrain_operator.config import GangConfig
from elastrain_operator.facts import Gang, JobRef, RefusalKind
from elastrain_operator.job.state import LoopState
from elastrain_operator.kube.errors import ApiError
from elastrain_operator.kube.refusals import Refused
from elastrain_operator.pod.gang import SCHEDULERS

RETRY = timedelta(seconds=60)
"""After an answer that the API is not served: when it is asked again."""

log = structlog.get_logger(__name__)


class Objects(Protocol):
    """The part of :class:`elastrain_operator.kube.client.Kube` that is used."""

    async def apply(self, path: str, manifest: Mapping[str, Any]) -> None: ...

    async def remove(self, path: str, what: str) -> None: ...


class Gangs:
    """The gangs of all jobs, for one scheduler."""

    def __init__(self, kube: Objects, config: GangConfig) -> None:
        self._kube, self._name, self._config = kube, config.scheduler, config
        self._scheduler = SCHEDULERS[config.scheduler]

    async def keep(self, job: JobRef, spec: JobSpec, state: LoopState) -> Refused | ApiError | None:
        """Have the object of a job that has workers equal its spec; without a change no call is made. Returns why pods
        that name their group cannot be created; an ``ApiError`` is worth another attempt."""
        if not self._scheduler.serves(spec.template, self._config.scheduler_name):
            state.gang = state.gang or Gang()
            return await self.drop(job, state)
        wanted, before = self._scheduler.manifest(job, spec), state.gang
        if before and before.manifest == wanted and not _is_due(before):
            return None
        try:
            if before and before.written and self._scheduler.immutable:
                await self._remove(job)
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
        """Keep or drop the object in a pass that creates no pod. A failure is logged, and the next pass tries again."""
        found = await (self.keep(job, spec, state) if wanted else self.drop(job, state))
        if found is not None:
            text = found.message if isinstance(found, Refused) else str(found)
            log.warning("gang not written", job=f"{job.namespace}/{job.name}", error=text)

    def mark(self, pod: dict[str, Any], job: JobRef, state: LoopState) -> dict[str, Any]:
        """``pod``, a manifest, with its reference to the group, if there is one."""
        return self._scheduler.mark(pod, job) if state.gang and state.gang.written else pod

    async def _apply(self, job: JobRef, wanted: Mapping[str, Any]) -> None:
        try:
            await self._kube.apply(self._scheduler.path(job), wanted)
        except ApiError as error:
            if error.code != 422 or not self._scheduler.immutable:
                raise
            await self._remove(job)  # an earlier operator has written it for another minimum
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
