"""What becomes of granted workers: a grant that does not become bound pods expires, and its job backs off. Pure.

A granted place is idle until a pod is bound to it. A job whose pods the API server refuses, or for which the scheduler
finds no node, would otherwise keep it idle without end, and other jobs small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from elastrain_operator.allocation.snapshot import Job, Share

HINDERED_SECONDS = 60.0
"""Seconds without another bound worker after which a grant expires, if the scheduler has found no node for a pod."""
SILENT_SECONDS = 300.0
"""The same if no cause is known: the API server or the scheduler is slow, or the operator has not created the pods."""
NODES_SECONDS = 600.0
"""Seconds for which workers stay Pending as a signal to an autoscaler: a node with accelerators takes minutes."""
FIRST_BACKOFF = 60.0
MOST_BACKOFF = 1800.0
"""Seconds until the next grant after the first expiry; each further one in a row doubles them, up to the greatest."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The history of one job's grants."""

    granted: int = 0
    bound: int = 0
    since: datetime | None = None
    """Since when a grant waits without progress; None: all granted workers are bound."""
    failures: int = 0
    """Expired grants in a row."""
    usable: int | None = None
    """Bound workers of whole groups when the last grant expired; None: none has expired."""
    until: datetime | None = None
    """When the grant expires (``since`` is set), or when the job may be granted more again; None: neither."""
    generation: int | None = None
    """``metadata.generation`` of the spec: a changed one is tried at once."""


def after(before: Promise | None, job: Job, granted: int, now: datetime, patience: float | None = None) -> Promise:
    """The promise at ``now``, for a job that was last granted ``granted`` workers.

    ``patience``: seconds without progress after which the grant expires; None: the usual ones.
    """
    old = before or Promise(generation=job.generation)
    if old.generation != job.generation:
        old = Promise(generation=job.generation)
    bound = sum(1 for w in job.workers if w.node)
    if usable(old, now) is not None:
        return replace(old, bound=bound, granted=granted, since=None)
    if bound == old.bound >= granted == old.granted and old.since is None and old.usable is None:
        return old  # at rest, as most jobs always are
    progress = bound > old.bound or granted > old.granted or job.paced
    since = None
    if bound < granted:
        since = now if progress or old.since is None else old.since
    # What it could use stays known after the back-off: only more of it is a success.
    failures = 0 if old.usable is not None and _whole(bound, job) > old.usable else old.failures
    made = replace(old, granted=granted, bound=bound, since=since, failures=failures, until=None)
    if since is None:
        return made
    until = since + timedelta(seconds=patience or (HINDERED_SECONDS if job.hindered else SILENT_SECONDS))
    if now < until and not (job.refused and job.refused > since):
        return replace(made, until=until)
    return _expired(made, job, now)


def usable(promise: Promise, now: datetime) -> int | None:
    """Most workers that the job may hold now, since its grant expired; None: no bound."""
    return promise.usable if promise.since is None and promise.until is not None and now < promise.until else None


def _expired(promise: Promise, job: Job, now: datetime) -> Promise:
    seconds = min(FIRST_BACKOFF * 2**promise.failures, MOST_BACKOFF)
    kept = _whole(promise.bound, job) if job.trains or promise.bound >= job.min else 0
    until = now + timedelta(seconds=seconds)
    return replace(promise, since=None, failures=promise.failures + 1, usable=kept, until=until)


def _whole(workers: int, job: Job) -> int:
    return workers - workers % job.group_size


class Promises:
    """The grants of all jobs: those within the room, and those that wait for an autoscaler's nodes."""

    def __init__(self) -> None:
        self._grants: dict[str, Promise] = {}
        self._asks: dict[str, Promise] = {}

    def follow(self, job: Job, given: Share | None, obstacle: str, now: datetime) -> Job:
        """``job`` with the bounds that its earlier grants leave. ``given``: its last share; ``obstacle``: the last
        answer of the API server or the scheduler about its pods."""
        size = given.size if given and given.size is not None else None
        if given is None or size is None:
            return replace(job, unused=_refused(job, obstacle))
        self._grants[job.uid] = grant = after(self._grants.get(job.uid), job, size - given.awaiting, now)
        wanted = size + given.pending if given.awaiting or given.pending else 0
        self._asks[job.uid] = ask = after(self._asks.get(job.uid), job, wanted, now, NODES_SECONDS)
        bound = usable(grant, now)
        unused = _expiry(grant, obstacle) if bound is not None else _refused(job, obstacle)
        may_ask = usable(ask, now) is None
        if (bound, unused, may_ask) == (job.usable, job.unused, job.may_ask):
            return job
        return replace(job, usable=bound, unused=unused, may_ask=may_ask)

    def forget(self, uid: str) -> None:
        """The job is gone, or needs no workers."""
        self._grants.pop(uid, None)
        self._asks.pop(uid, None)

    def next_change(self, now: datetime) -> float | None:
        """Seconds until time alone ends a grant or a back-off; None: never."""
        ends = [p.until for p in (*self._grants.values(), *self._asks.values()) if p.until and p.until > now]
        return (min(ends) - now).total_seconds() if ends else None


def _expiry(promise: Promise, obstacle: str) -> str:
    assert promise.until is not None, "an expired grant has a time of its next attempt"
    why = obstacle or "they were not bound to nodes in time, and no cause is reported"
    return f"granted workers beyond {promise.usable} could not be used: {why}; granted again at {_clock(promise.until)}"


def _refused(job: Job, obstacle: str) -> str:
    return "" if job.admitted or not obstacle else f"the API server refuses its pods: {obstacle}"


def _clock(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
