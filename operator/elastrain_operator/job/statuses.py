"""Writes the status of jobs, and says it in other ways where the API server refuses one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from elastrain.api.records import PHASES
from elastrain_operator import clock
from elastrain_operator.facts import JobEvent, JobRef, Severity
from elastrain_operator.job.recorder import Recorder
from elastrain_operator.job.state import LoopState
from elastrain_operator.kube.answers import ApiError
from elastrain_operator.kube.client import Kube
from elastrain_operator.metrics import process as metrics
from elastrain_operator.policy.report import conditions
from elastrain_operator.policy.report.events import LONGEST
from elastrain_resource.job import JobStatus

LARGEST = 2**63 - 1
_OF_THE_MOMENT = frozenset({0, 401, 409, 429, 502, 503, 504})
"""Codes of answers that are not about the status: the next pass asks again."""

log = structlog.get_logger(__name__)


class Statuses:
    """Writes the status of jobs to one API server."""

    def __init__(self, kube: Kube, events: Recorder) -> None:
        self._kube, self._events = kube, events

    async def write(self, job: JobRef, status: JobStatus, state: LoopState) -> ApiError | None:
        """Write ``status``. Returns why the API server refuses it: the record is then as before; a metric, a log line
        and an event say so, and its short form where that is admitted. Raises ``ApiError`` for answers of the
        moment."""
        try:
            patch = status_patch(status)
            state.version = await self._kube.patch_status(job.namespace, job.name, patch, state.version)
        except ApiError as error:
            if error.code in _OF_THE_MOMENT:
                raise
            metrics.STATUSES_REFUSED.inc()
            log.warning("status refused", job=f"{job.namespace}/{job.name}", error=str(error))
            await self._report(job, status, str(error), state)
            return error
        state.status, state.status_written, state.short_status = status, clock.now(), {}
        return None

    async def _report(self, job: JobRef, status: JobStatus, cause: str, state: LoopState) -> None:
        """Without it, the stored status would go on to say what was true before."""
        short = short_status(status, cause, job.generation)
        if short == state.short_status:
            return
        if not state.short_status:
            self._events.record(job, JobEvent(conditions.REFUSED, cause[:LONGEST], Severity.WARNING))
        state.short_status = short
        reported = conditions.merge(status.conditions, [conditions.refused(cause)], clock.now())
        wire = {**short, "conditions": [c.model_dump(mode="json", by_alias=True, exclude_none=True) for c in reported]}
        try:
            state.version = await self._kube.patch_status(job.namespace, job.name, wire, state.version)
        except ApiError as error:
            log.warning("short status refused", job=f"{job.namespace}/{job.name}", error=str(error))
            return
        if state.status is not None:  # what the next status is compared with
            state.status = state.status.model_copy(update={"conditions": reported})

    async def report_unreadable(self, job: JobRef, raw: Any, cause: str, state: LoopState) -> None:
        """Report that the status ``raw`` of a job cannot be read, and change nothing else. Raises ``ApiError``."""
        text = conditions.unreadable_message(job.name, cause)
        patch = conditions.unreadable_patch(raw, text, clock.now())
        if patch is not None:
            state.version = await self._kube.patch_status(job.namespace, job.name, patch, state.version)
        if state.unreadable != cause:
            self._events.record(job, JobEvent(conditions.UNREADABLE, text[:LONGEST], Severity.WARNING))
            state.unreadable = cause


def short_status(status: JobStatus, cause: str, generation: int | None) -> dict[str, Any]:
    """What a status says of the job's size, and its conditions without their times, if the API server has refused the
    whole for this ``cause``. Bounded: none of its lists but these can be the reason."""
    fields = status.model_dump(
        mode="json", by_alias=True, include={"phase", "replicas", "desired_replicas", "ready_replicas"}
    )
    said = [(c.type, c.status, c.reason, c.message) for c in status.conditions]
    return {**fields, "observedGeneration": generation, "conditions": [*said, cause]}


def status_patch(status: JobStatus) -> dict[str, Any]:
    """A merge patch that makes a stored status equal to ``status``: absent fields of objects become null, which removes
    them; in lists, which are replaced as a whole, they are left out."""
    wire = _storable(status.model_dump(mode="json", by_alias=True, exclude_none=True))
    patch = _with_nulls(status.model_dump(mode="json", by_alias=True), wire)
    if status.last_rescale is not None:  # remove the phases of an earlier, unplanned rescale
        patch["lastRescale"]["phases"] = dict.fromkeys(PHASES) | patch["lastRescale"]["phases"]
    return patch


def _storable(value: Any) -> Any:
    """``value`` with integers that fit into the API server's 64 bits: a job's records may contain any number."""
    if isinstance(value, dict):
        return {name: _storable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_storable(inner) for inner in value]
    return min(max(value, -LARGEST - 1), LARGEST) if isinstance(value, int) and not isinstance(value, bool) else value


def _with_nulls(whole: Mapping[str, Any], wire: Mapping[str, Any]) -> dict[str, Any]:
    """``wire``, with a null for each field that only ``whole`` has."""
    return {
        name: _with_nulls(value, wire[name]) if isinstance(value, dict) and name in wire else wire.get(name)
        for name, value in whole.items()
    }
