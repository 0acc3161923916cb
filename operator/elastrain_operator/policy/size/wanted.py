"""The desired number of workers of a job, and the condition that explains it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from elastrain.api.job import Condition, ConditionType, JobSpec, JobStatus
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import ConditionUpdate, Observed

ANSWER = timedelta(seconds=3)
"""How long the report of a changed spec waits for the allocator's answer, so that both are one write of the status."""


def wanted(spec: JobSpec, status: JobStatus, share: Share | None) -> int:
    """Desired workers. ``share``: the allocator's answer; None: this operator does not share the cluster out, and an
    absent ``replicas`` means ``maxReplicas``.

    A share may be older than the spec, so the spec's bounds apply to it. If the allocator does not know the cluster,
    the job keeps its size; a new job waits, or starts with its minimum if waiting would not help.
    """
    if spec.suspend:
        return 0
    if share is None:
        return spec.desired_replicas
    if share.size is not None:
        return min(share.size, spec.desired_replicas)
    kept = min(status.desired_replicas or 0, spec.desired_replicas)
    return max(kept, spec.min_replicas) if share.blind else kept


def unanswered_since(before: datetime | None, observed: Observed, now: datetime) -> datetime | None:
    """Since when the allocator owes an answer for the job's present spec; None: it owes none. ``before``: the last
    result."""
    share = observed.share
    owed = share is not None and share.generation not in {None, observed.job.generation}
    return (before or now) if owed else None


def grown(
    old: Iterable[Condition], suspended: bool, share: Share | None, desired: int, cap: int, *, answered: bool = True
) -> ConditionUpdate | None:
    """The condition that explains why the job is not larger; None: it stays as it is, or no explanation has ever
    applied. ``answered``: the share is for the present spec."""
    kind = ConditionType.GROWN
    if suspended or share is None:
        if not any(c.type == kind for c in old):
            return None
        text = "suspend is true" if suspended else "this operator does not share the cluster out"
        return ConditionUpdate(kind, "Unknown", "Suspended" if suspended else "NotShared", text)
    if not (share.is_answer and answered) and any(c.type == kind for c in old):
        return None
    if share.size is None:
        return ConditionUpdate(kind, "Unknown", share.reason, share.message)
    return ConditionUpdate(kind, "True" if desired >= cap else "False", share.reason, share.message)
