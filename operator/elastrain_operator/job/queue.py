"""The one interface to a queue that decides the size of some jobs: Kueue's part of the operator implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from elastrain_operator.allocation.snapshot import WorkerShape
from elastrain_operator.facts import Charge, JobRef, Observed
from elastrain_resource.job import JobSpec, JobStatus


class QueuedPass(Protocol):
    """One pass of a queued job."""

    def charged_to(self, observed: Observed) -> Observed:
        """``observed`` with the size and the places that the queue gives."""

    def unbound(self, spec: JobSpec) -> Mapping[WorkerShape, int] | None:
        """The admitted pods that are on no node yet, as the allocator counts them; None: unknown."""

    async def apply(self, job: JobRef, spec: JobSpec, resync: float) -> float:
        """Write what was decided; returns the seconds until the next pass is due without a change."""


class JobQueue(Protocol):
    """Decides about the queued jobs of one operator."""

    def decide(
        self, body: Mapping[str, Any], job: JobRef, spec: JobSpec, status: JobStatus, observed: Observed
    ) -> QueuedPass | None:
        """The queue's part of this pass; None: it has nothing to do with the job."""

    def charged_to(self, manifest: dict[str, Any], charge: Charge) -> dict[str, Any]:
        """The pod of a queued job, with the place that it is charged to."""

    def forget(self, uid: str) -> None:
        """A job is gone."""
