"""What becomes of granted workers: a grant that does not become bound pods expires, and its job backs off. Pure.

A granted place is idle until a pod is bound to it. A job whose pods the API server refuses, or for which the scheduler
finds no node, would otherwise keep it idle without end, and other jobs small.

A job that does not train has used a grant only if its whole minimum is bound: pods that were bound beside one that was
refused end no back-off. The cause of an expired grant is kept as long as the back-off lasts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from elastrain_operator.allocation.resources import CLAIM
from elastrain_operator.allocation.snapshot import Job, Obstacle, Share

HINDERED_SECONDS = 60.0
"""Seconds without another bound worker after which a grant expires, if the scheduler has found no node for a pod."""
SILENT_SECONDS = 300.0
"""The same if no cause is known: the API server or the scheduler is slow, or the operator has not created the pods."""
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
    obstacle: Obstacle | None = None
    """Why the last grant expired; None: none has expired, or no cause was known."""
    room: int | None = None
    """Workers that ResourceQuotas admitted then; None: unknown."""
    fingerprint: int | None = None
    """Of what the scheduler looked at then: nodes, and jobs of the namespace; None: it has refused no pod."""
    generation: int | None = None
    """``metadata.generation`` of the spec: a changed one is tried at once."""


def after(
    before: Promise | None,
    job: Job,
    granted: int,
    now: datetime,
    *,
    obstacle: Obstacle | None = None,
    fingerprint: int | None = None,
) -> Promise:
    """The promise at ``now``, for a job that was last granted ``granted`` workers.

    ``obstacle``: why its next worker is not created or bound; ``fingerprint``: as in :class:`Promise`.
    """
    old = before or Promise(generation=job.generation)
    if old.generation != job.generation:
        old = Promise(generation=job.generation)
    bound = sum(bool(w.node) for w in job.workers)
    bound = max(bound - sum(w.stuck for w in job.workers), min(bound, job.min))  # beyond its minimum they are no use
    if usable(old, now) is not None:
        if not _has_more_quota(old, job):
            return replace(old, bound=bound, granted=granted, since=None)
        old = replace(old, until=None)
    if bound == old.bound >= granted == old.granted and old.since is None and old.usable is None:
        return old  # at rest, as most jobs always are
    progress = bound > old.bound or granted > old.granted or job.paced
    since = None
    if bound < granted:
        since = now if progress or old.since is None else old.since
    made = replace(old, granted=granted, bound=bound, since=since, until=None)
    if _is_success(old, job, bound, granted):
        made = replace(made, failures=0, usable=None, obstacle=None, fingerprint=None)
    if since is None:
        return made
    until = since + timedelta(seconds=HINDERED_SECONDS if job.hindered else SILENT_SECONDS)
    if now < until and not (job.refused and job.refused > since) and not (job.evicting and job.evicts):
        return replace(made, until=until)
    seen = fingerprint if _is_unmodelled(job) and job.hindered else None
    return _expired(replace(made, obstacle=obstacle, room=job.quota_room, fingerprint=seen), job, now)


def _has_more_quota(old: Promise, job: Job) -> bool:
    """Whether a quota that ended the grant admits more workers since: they need not wait for the back-off."""
    refused = old.obstacle is not None and old.obstacle.refused
    return refused and old.room is not None and (job.quota_room is None or job.quota_room > old.room)


def _is_success(old: Promise, job: Job, bound: int, granted: int) -> bool:
    """Whether more workers are bound than when the last grant expired, and are of use: each one of a job that trains,
    unless a further one was refused; else all that were granted."""
    if old.usable is None or _whole(bound, job) <= old.usable:
        return False
    refused = old.obstacle is not None and old.obstacle.refused
    return bound >= granted or (job.trains and not refused)


def usable(promise: Promise, now: datetime) -> int | None:
    """Most workers that the job may hold now, since its grant expired; None: no bound."""
    return promise.usable if promise.since is None and promise.until is not None and now < promise.until else None


def _expired(promise: Promise, job: Job, now: datetime) -> Promise:
    seconds = min(FIRST_BACKOFF * 2**promise.failures, MOST_BACKOFF)
    kept = _whole(promise.bound, job) if job.trains or promise.bound >= job.min else 0
    until = now + timedelta(seconds=seconds)
    return replace(promise, since=None, failures=promise.failures + 1, usable=kept, until=until)


def _is_unmodelled(job: Job) -> bool:
    """Whether the scheduler may refuse its pods for what the allocator does not know: quotas of claims, too."""
    return bool(job.unknown) or any(resource.startswith(CLAIM) for resource, _ in job.kind.demand)


def _whole(workers: int, job: Job) -> int:
    return workers - workers % job.group_size


class Promises:
    """The grants of all jobs. Workers that wait for an autoscaler's nodes are none: they hold nothing."""

    def __init__(self) -> None:
        self._grants: dict[str, Promise] = {}

    def follow(
        self, job: Job, given: Share | None, obstacle: Obstacle | None, now: datetime, fingerprint: int = 0
    ) -> Job:
        """``job`` with the bounds that its earlier grants leave. ``given``: its last share; ``obstacle``: the last
        answer of the API server or the scheduler about its pods; ``fingerprint``: what the scheduler looks at now."""
        size = given.size if given and given.size is not None else None
        if given is None or size is None:
            return _held_back(job, None, obstacle, now)
        grant = after(
            self._grants.get(job.uid), job, size - given.awaiting, now, obstacle=obstacle, fingerprint=fingerprint
        )
        self._grants[job.uid], followed = grant, _held_back(job, grant, obstacle, now)
        if grant.fingerprint != fingerprint or not _is_unmodelled(job):
            return followed
        text = "no other worker leaves for it until nodes, its spec or jobs of its namespace change"
        if job.evicts and followed.usable is None:  # nor is any evicted for it again
            followed = replace(followed, usable=grant.usable, unused=f"{text}: {grant.obstacle}")
        return replace(followed, barred=f"; {text}: {grant.obstacle}")

    def forget(self, uid: str) -> None:
        """The job is gone, or needs no workers."""
        self._grants.pop(uid, None)

    def next_change(self, now: datetime) -> float | None:
        """Seconds until time alone ends a grant or a back-off; None: never."""
        ends = [p.until for p in self._grants.values() if p.until and p.until > now]
        return (min(ends) - now).total_seconds() if ends else None


def _held_back(job: Job, grant: Promise | None, obstacle: Obstacle | None, now: datetime) -> Job:
    """``job`` with the bound of an expired ``grant``, or with the refusal of its pods."""
    bound, why, unused = None if grant is None else usable(grant, now), "", ""
    if grant is not None and bound is not None:
        why, unused = _reason(grant.obstacle), _expiry(grant)
    elif not job.admitted and obstacle is not None:
        why, unused = _reason(obstacle), f"the API server refuses its pods: {obstacle}"
    if (bound, unused, why) == (job.usable, job.unused, job.obstacle):
        return job  # at rest, as most jobs always are
    return replace(job, usable=bound, unused=unused, obstacle=why)


def _reason(obstacle: Obstacle | None) -> str:
    return obstacle.reason if obstacle is not None and obstacle.refused else ""


def _expiry(promise: Promise) -> str:
    assert promise.until is not None, "an expired grant has a time of its next attempt"
    why = promise.obstacle or "they were not bound to nodes in time, and no cause is reported"
    return f"granted workers beyond {promise.usable} could not be used: {why}; granted again at {_clock(promise.until)}"


def _clock(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
