"""How many workers a job wants now, and what it says about not having more."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.api.job import Condition, ConditionType, JobSpec, JobStatus
from elastrain_operator.allocation.model import Share
from elastrain_operator.policy.report.conditions import Claim


def wanted(spec: JobSpec, status: JobStatus, share: Share | None) -> int:
    """Workers wanted now. ``share``: what the allocator says; None: this operator does not share the cluster out, and
    an absent ``replicas`` means ``maxReplicas``.

    A share was made for the spec of a moment ago: what the user bounds since then holds at once. Where the allocator
    does not know the cluster the job keeps the size it has; a new one waits, or begins with its minimum where waiting
    would not help.
    """
    if spec.suspend:
        return 0
    if share is None:
        return spec.desired_replicas
    if share.size is not None:
        return min(share.size, spec.desired_replicas)
    kept = min(status.desired_replicas or 0, spec.desired_replicas)
    return max(kept, spec.min_replicas) if share.blind else kept


def grown(old: Iterable[Condition], suspended: bool, share: Share | None, desired: int, cap: int) -> Claim | None:
    """The condition that says why the job is not larger; None: nothing is to be said, nor was it ever."""
    kind = ConditionType.GROWN
    if suspended or share is None:
        if not any(c.type == kind for c in old):
            return None
        text = "suspend is true" if suspended else "this operator does not share the cluster out"
        return Claim(kind, "Unknown", "Suspended" if suspended else "NotShared", text)
    if share.size is None:
        return Claim(kind, "Unknown", share.reason, share.message)
    return Claim(kind, "True" if desired >= cap else "False", share.reason, share.message)
