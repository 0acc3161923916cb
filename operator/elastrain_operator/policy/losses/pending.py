"""Workers that do not start in time: withdrawn if enough others run, else the job fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from elastrain.api.job import ConditionType, JobSpec, Withdrawal
from elastrain.api.names import headcount
from elastrain_operator.facts import Deletion, Pod, Verdict

QUEUED = "SchedulingGated"
"""Kubernetes' reason for a pod that a queue such as Kueue holds back: the pod is not late."""


def late(workers: Iterable[Pod], limit: int | None, now: datetime) -> tuple[Pod, ...]:
    """Workers that have not started within ``limit`` seconds of their creation, oldest first."""
    if limit is None:
        return ()
    found = [p for p in workers if _waits(p) and now >= p.seen + timedelta(seconds=limit)]
    return tuple(sorted(found, key=lambda p: (p.seen, p.ordinal)))


def next_deadline(workers: Iterable[Pod], limit: int | None) -> datetime | None:
    """When the next unstarted worker becomes late; None: no such worker, or no limit."""
    if limit is None:
        return None
    return min((p.seen + timedelta(seconds=limit) for p in workers if _waits(p)), default=None)


def verdict(spec: JobSpec, workers: Sequence[Pod], units: Iterable[Pod], now: datetime) -> Verdict | None:
    """The job fails if a worker is late and fewer than ``minReplicas`` have started: they hold resources in vain.

    ``units``: as of :func:`elastrain_operator.policy.size.groups.stand_ins`.
    """
    limit, minimum = spec.pending_deadline_seconds, spec.min_replicas
    overdue = late(workers, limit, now)
    started = sum(p.started for p in units)
    if spec.suspend or not overdue or started >= minimum:
        return None
    have = headcount(started) if spec.group_size == 1 else f"{started} group{'s' * (started != 1)}"
    text = (
        f"{have} started, minReplicas is {minimum}, and within pendingDeadlineSeconds ({limit}) {_not_started(overdue)}"
    )
    return Verdict(ConditionType.FAILED, "PendingDeadlineExceeded", text)


def withdraw(overdue: Sequence[Pod], limit: int | None, now: datetime) -> Withdrawal | None:
    """The record of late workers that are deleted now; the operator retries them after the same time."""
    if not overdue or limit is None:
        return None
    first = overdue[0].trouble
    return Withdrawal(
        until=(now + timedelta(seconds=limit)).isoformat(),
        reason=first.reason if first else "NotStarted",
        message=f"within pendingDeadlineSeconds ({limit}) {_not_started(overdue)}",
    )


def continued(previous: Withdrawal | None, workers: Iterable[Pod], minimum: int, now: datetime) -> Withdrawal | None:
    """The earlier withdrawal while it is in force: until its time, or until fewer than ``minimum`` workers run."""
    if previous is None or now >= datetime.fromisoformat(previous.until):
        return None
    return previous if sum(p.started for p in workers) >= minimum else None


def deletions(overdue: Iterable[Pod]) -> tuple[Deletion, ...]:
    """Deletions of the late workers, and of others of their groups that never ran: no state is lost."""
    return tuple(Deletion(p.name, p.uid, "did not start within pendingDeadlineSeconds") for p in overdue)


def _waits(pod: Pod) -> bool:
    queued = pod.trouble is not None and pod.trouble.reason == QUEUED
    return not (pod.started or pod.ending or pod.terminating or queued)


def _not_started(overdue: Sequence[Pod]) -> str:
    first, others = overdue[0], len(overdue) - 1
    why = f"{first.trouble.reason}: {first.trouble.message}" if first.trouble else "no cause is reported"
    more = f" (and {others} more)" if others else ""
    return f"worker {first.name} did not start: {why}{more}"
