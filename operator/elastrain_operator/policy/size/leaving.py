"""When workers were asked to leave: kept in the job's status, so that the next operator uses the same deadlines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from elastrain.api.job import JobStatus, Leaving


def since(status: JobStatus) -> dict[str, datetime]:
    """When each leaving worker (pod name) was asked."""
    return {worker: datetime.fromisoformat(asked.since) for asked in status.leaving for worker in asked.workers}


def record(known: Mapping[str, datetime], leaving: Iterable[str], now: datetime) -> list[Leaving]:
    """``status.leaving`` for the ``leaving`` workers: those that are not ``known`` yet are asked now."""
    asked: dict[datetime, list[str]] = {}
    for worker in sorted(leaving):
        asked.setdefault(known.get(worker, now), []).append(worker)
    return [Leaving(since=moment.isoformat(), workers=workers) for moment, workers in sorted(asked.items())]
