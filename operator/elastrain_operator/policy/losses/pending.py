"""Workers that do not start in time: withdrawn while enough others run, the end of the job where they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from elastrain.api.job import ConditionType, JobSpec, Withdrawal
from elastrain.api.phrases import headcount
from elastrain_operator.model import Deletion, Pod
from elastrain_operator.policy.ending.verdict import Verdict

QUEUED = "SchedulingGated"
"""Kubernetes' reason for a pod that a queue such as Kueue still holds back: the pod is not late."""


def late(workers: Iterable[Pod], limit: int | None, now: datetime) -> tuple[Pod, ...]:
    """Workers that have not started within ``limit`` seconds of their creation, the one that waits longest first."""
    if limit is None:
        return ()
    found = [p for p in workers if _waits(p) and now >= p.created + timedelta(seconds=limit)]
    return tuple(sorted(found, key=lambda p: (p.created, p.ordinal)))


def next_deadline(workers: Iterable[Pod], limit: int | None) -> datetime | None:
    """When the first worker that has not started yet will be late; None: there is none, or no limit."""
    if limit is None:
        return None
    return min((p.created + timedelta(seconds=limit) for p in workers if _waits(p)), default=None)


def verdict(spec: JobSpec, workers: Sequence[Pod], now: datetime) -> Verdict | None:
    """The job fails where a worker is late without which it cannot train: what it has holds resources for nothing."""
    limit, minimum = spec.pending_deadline_seconds, spec.min_replicas
    overdue = late(workers, limit, now)
    started = sum(p.started for p in workers)
    if spec.suspend or not overdue or started >= minimum:
        return None
    text = (
        f"{headcount(started)} started, minReplicas is {minimum}, and within pendingDeadlineSeconds ({limit}) "
        f"{_not_started(overdue)}"
    )
    return Verdict(ConditionType.FAILED, "PendingDeadlineExceeded", text)


def withdraw(overdue: Sequence[Pod], limit: int | None, now: datetime) -> Withdrawal | None:
    """The record of late workers that are deleted now; they are tried again after the same time."""
    if not overdue or limit is None:
        return None
    first = overdue[0].trouble
    return Withdrawal(
        until=(now + timedelta(seconds=limit)).isoformat(),
        reason=first.reason if first else "NotStarted",
        message=f"within pendingDeadlineSeconds ({limit}) {_not_started(overdue)}",
    )


def continued(previous: Withdrawal | None, workers: Iterable[Pod], minimum: int, now: datetime) -> Withdrawal | None:
    """The earlier withdrawal, as long as it holds: until its time, or until the job needs every worker it can get."""
    if previous is None or now >= datetime.fromisoformat(previous.until):
        return None
    return previous if sum(p.started for p in workers) >= minimum else None


def deletions(overdue: Iterable[Pod]) -> tuple[Deletion, ...]:
    """Late workers never ran: nothing is lost with them."""
    return tuple(Deletion(p.name, p.uid, "did not start within pendingDeadlineSeconds") for p in overdue)


def _waits(pod: Pod) -> bool:
    queued = pod.trouble is not None and pod.trouble.reason == QUEUED
    return not (pod.started or pod.ending or pod.terminating or queued)


def _not_started(overdue: Sequence[Pod]) -> str:
    first, others = overdue[0], len(overdue) - 1
    why = f"{first.trouble.reason}: {first.trouble.message}" if first.trouble else "nothing says why"
    more = f" (and {others} more)" if others else ""
    return f"worker {first.name} did not start: {why}{more}"
