"""Writes the annotations by which autoscalers spare a worker. A failure is only logged: it stops no other write."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

import structlog

from elastrain_operator import clock
from elastrain_operator.facts import JobRef, Mark
from elastrain_operator.job.state import LoopState
from elastrain_operator.kube.errors import ApiError
from elastrain_operator.pod.defaults import evictable

RETRY = timedelta(seconds=60)
"""Seconds after a failed write before the next attempt."""

log = structlog.get_logger(__name__)


class Pods(Protocol):
    """The part of :class:`elastrain_operator.kube.client.Kube` that is used."""

    async def annotate_pod(self, namespace: str, name: str, uid: str, values: Mapping[str, str | None]) -> None: ...


async def write(kube: Pods, job: JobRef, marks: tuple[Mark, ...], state: LoopState) -> None:
    """Annotate the workers, and note a failure in ``state``."""
    if state.marks_retry is not None and clock.now() < state.marks_retry:
        return
    state.marks_retry = None
    for mark in marks:
        try:
            await kube.annotate_pod(job.namespace, mark.pod, mark.uid, evictable(keep=mark.keep))
        except ApiError as error:
            state.marks_retry = clock.now() + RETRY
            log.warning("worker not annotated", job=f"{job.namespace}/{job.name}", pod=mark.pod, error=str(error))
            return
