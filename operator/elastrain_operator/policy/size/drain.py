"""When workers were asked to leave, and when each may be deleted. The times are kept in the job's status, so that the
next operator uses the same deadlines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from elastrain.api.job import JobStatus, Leaving
from elastrain_operator.facts import Coordination, Pod


def released(pod: Pod, members: Coordination | None, due: datetime, now: datetime) -> str | None:
    """Why the pod may be deleted now; None: it still trains, or that is unknown.

    A leaving worker exits by itself and writes a termination record, so a Ready pod is kept even if it is no longer a
    member. ``members`` is None if membership is unknown. That alone never releases a pod; the deadline does, which
    guarantees that a shrink ends.
    """
    if pod.ending:
        return "ended"
    if not pod.started:
        return "never started"
    gone = members is not None and members.member_of(pod.name) is None and not members.trains(pod.name)
    if gone and not pod.ready:
        return "no longer a member"
    return "drain deadline passed" if now >= due else None


def deadline(pod: Pod, since: datetime, extra: float) -> datetime:
    """``extra`` seconds beyond the pod's own grace period, from when it was asked to leave."""
    return since + timedelta(seconds=pod.grace + extra)


def since(status: JobStatus) -> dict[str, datetime]:
    """When each leaving worker (pod name) was asked."""
    return {worker: datetime.fromisoformat(asked.since) for asked in status.leaving for worker in asked.workers}


def record(known: Mapping[str, datetime], leaving: Iterable[str], now: datetime) -> list[Leaving]:
    """``status.leaving`` for the ``leaving`` workers: those that are not ``known`` yet are asked now."""
    asked: dict[datetime, list[str]] = {}
    for worker in sorted(leaving):
        asked.setdefault(known.get(worker, now), []).append(worker)
    return [Leaving(since=moment.isoformat(), workers=workers) for moment, workers in sorted(asked.items())]
