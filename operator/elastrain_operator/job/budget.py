"""Writes the PodDisruptionBudgets of jobs. A failure is only logged: it must not stop the job's other writes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import structlog

from elastrain.api import names
from elastrain_operator import clock
from elastrain_operator.facts import DisruptionBudget, JobRef
from elastrain_operator.job.state import LoopState
from elastrain_operator.kube.client import ApiError
from elastrain_operator.pod.manifest import owned

RETRY = timedelta(seconds=60)
"""Seconds after a failed write before the next attempt."""

log = structlog.get_logger(__name__)


class Budgets(Protocol):
    """The part of :class:`elastrain_operator.kube.client.Kube` that is used."""

    async def apply(self, path: str, manifest: Mapping[str, Any]) -> None: ...

    async def remove(self, path: str, what: str) -> None: ...


async def write(kube: Budgets, job: JobRef, budget: DisruptionBudget, state: LoopState) -> None:
    """Write or delete a job's budget, and note that in ``state``."""
    if state.budget_retry is not None and clock.now() < state.budget_retry:
        return
    try:
        if budget.ordinals:
            await kube.apply(path(job), manifest(job, budget))
        else:
            await kube.remove(path(job), f"delete disruption budget {job.namespace}/{name(job)}")
    except ApiError as error:
        state.budget_retry = clock.now() + RETRY
        log.warning("disruption budget not written", job=f"{job.namespace}/{job.name}", error=str(error))
        return
    state.budget, state.budget_retry = budget, None


def name(job: JobRef) -> str:
    """Name of a job's budget; a job's name has at most 50 characters."""
    return f"{job.name}-state-{job.uid[:8]}"


def path(job: JobRef) -> str:
    """The API path of a job's budget."""
    return f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets/{name(job)}"


def manifest(job: JobRef, budget: DisruptionBudget) -> dict[str, Any]:
    """The budget for server-side apply. The garbage collector deletes it with the job."""
    chosen = {"key": names.LABEL_ORDINAL, "operator": "In", "values": [str(n) for n in budget.ordinals]}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owned(job, name(job)),
        "spec": {
            "minAvailable": budget.least,
            "selector": {"matchLabels": {names.LABEL_JOB_UID: job.uid}, "matchExpressions": [chosen]},
        },
    }
