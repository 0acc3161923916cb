"""Which pods are deleted without being asked to leave: ended ones, those of a finished job, and of one that is being
deleted; and when a finished job itself is. Pure.

Kubernetes' garbage collector deletes a job's pods only when the job itself is gone, and a foreign finalizer may hold it
for days. The deletion cannot be taken back, so the workers leave at once, as they would without that finalizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from elastrain.api.job import CleanPodPolicy, ConditionType
from elastrain.api.names import headcount
from elastrain.api.records import Outcome
from elastrain_operator.facts import ConditionUpdate, Deletion, Pod

KEPT_FAILURES = 3
"""Failed pods of a running job that stay for ``kubectl logs``: the newest ones."""
FINISH_GRACE = 60.0
"""Seconds that workers of a finished job have to exit."""
SIDECAR_GRACE = 30.0
"""Seconds that other containers of an ended worker may run; then the pod is deleted to free its resources."""
ORPHAN = "orphan"
"""The finalizer of ``kubectl delete --cascade=orphan``: its user keeps the pods."""


def ended(pods: Iterable[Pod], counted: frozenset[str], now: datetime) -> tuple[Deletion, ...]:
    """Ended pods of a running job: drained ones at once, failed ones if they are old or hold resources.

    A failed pod is deleted only if it is ``counted``: the status contains its loss.
    """
    found = sorted((p for p in pods if p.ending and not p.terminating), key=_age, reverse=True)
    done = [p for p in found if is_drained(p) and p.uid not in counted]  # a preempted worker may also have drained
    failed = [p for p in found if p not in done]
    drained = [_deletion(p, "drained") for p in done]
    old = [_deletion(p, "old failure") for p in failed[KEPT_FAILURES:] if p.uid in counted]
    held = [
        _deletion(p, "ended but still holds resources")
        for p in failed[:KEPT_FAILURES]
        if p.uid in counted and not p.over and now >= sidecar_deadline(p)
    ]
    return (*drained, *old, *held)


def finished(
    pods: Iterable[Pod], policy: CleanPodPolicy, verdict: ConditionType, completion: datetime, now: datetime
) -> tuple[Deletion, ...]:
    """Pods of a finished job. Workers that never started are deleted at once under every policy: they have no logs.
    Running workers get time to exit (after a failure: to save a checkpoint)."""
    late = now >= finish_deadline(completion)
    deletions = []
    for pod in pods:
        if pod.terminating:
            continue
        if not pod.ending and not pod.started:
            deletions.append(_deletion(pod, f"job {verdict}, never started"))
        elif policy is CleanPodPolicy.ALL and (pod.ending or late):
            deletions.append(_deletion(pod, f"job {verdict}, cleanPodPolicy All"))
        elif policy is CleanPodPolicy.RUNNING and not pod.over and late:
            deletions.append(_deletion(pod, f"job {verdict}, still running"))
    return tuple(deletions)


def finish_deadline(completion: datetime) -> datetime:
    """When the workers of a finished job that are still running are deleted."""
    return completion + timedelta(seconds=FINISH_GRACE)


def sidecar_deadline(pod: Pod) -> datetime:
    """When an ended worker with other running containers is deleted."""
    return _ended_at(pod) + timedelta(seconds=SIDECAR_GRACE)


def is_drained(pod: Pod) -> bool:
    """Whether the worker left at a step boundary, by its termination record."""
    return bool(pod.ending and pod.ending.record and pod.ending.record.outcome is Outcome.DRAINED)


def _age(pod: Pod) -> tuple[datetime, int]:
    """Newer pods are greater; of those that ended before this operator started, those of a higher ordinal."""
    return _ended_at(pod), pod.ordinal


def _ended_at(pod: Pod) -> datetime:
    assert pod.ending is not None
    return pod.ending.at


def _deletion(pod: Pod, why: str) -> Deletion:
    return Deletion(pod.name, pod.uid, why)


def expiry(ttl_seconds: int | None, completion: datetime | None) -> datetime | None:
    """When the job is to be deleted; None: never, or not finished."""
    if ttl_seconds is None or completion is None:
        return None
    return completion + timedelta(seconds=ttl_seconds)


def of_deleted_job(pods: Sequence[Pod], finalizers: Sequence[str]) -> tuple[Deletion, ...]:
    """Pods to delete now. Ended ones stay for ``kubectl logs``: they hold nothing, and go with the job."""
    if ORPHAN in finalizers:
        return ()
    return tuple(Deletion(p.name, p.uid, "the job is being deleted") for p in pods if not p.over and not p.terminating)


def deleted_job_claim(pods: Sequence[Pod], finalizers: Sequence[str]) -> ConditionUpdate:
    """The condition PodsReady of such a job."""
    live = sum(not p.over for p in pods)
    text = "the job is being deleted"
    if live and ORPHAN in finalizers:
        text += f"; {headcount(live)} kept, by --cascade=orphan"
    elif live:
        text += f"; {headcount(live)} leaving"
    if finalizers:
        text += f"; its object remains until these finalizers are removed: {', '.join(finalizers)}"
    return ConditionUpdate(ConditionType.PODS_READY, "False", "JobDeleted", text)
