"""All of a minimum or nothing, without a view of the cluster: a job that holds a part of its minimum in vain releases
it. Pure.

Where the operator shares the cluster out, the allocator starts a minimum only if all of it fits. Elsewhere the
scheduler binds pods one by one, and two jobs can hold half of what each needs. Every job waits for a time of its own,
from its UID and the number of its attempts: the one that gives up first frees room for the others, and times differ in
each attempt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from elastrain_operator.facts import StartAttempts

PATIENCE = 600.0
"""Least seconds for which a job holds a part of its minimum without another bound worker: an autoscaler may be adding
nodes. Jobs wait up to twice as long."""
FIRST_PAUSE = 60.0
MOST_PAUSE = 900.0
"""Least seconds without pods after the first release; they double with each further one, up to the greatest. Jobs pause
up to twice as long."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a job holds now."""

    uid: str
    minimum: int
    bound: int
    """Workers on nodes."""
    holds: bool
    """It holds what other jobs need: nodes, or a part of a quota that has no room for the rest."""


def update(before: StartAttempts, attempt: Holding | None, now: datetime) -> StartAttempts:
    """The attempts at ``now``. ``attempt`` None: the rule does not apply (the job has trained, is suspended or ends, or
    the operator shares the cluster out)."""
    if attempt is None or attempt.bound >= attempt.minimum:
        return StartAttempts()
    if before.until is not None and now < before.until:
        return before
    attempts = replace(before, bound=attempt.bound, until=None)
    if not attempt.holds:
        return replace(attempts, since=None)
    progress = before.since is None or attempt.bound > before.bound
    attempts = replace(attempts, since=now if progress else before.since)
    if now < _end(attempts, attempt.uid):
        return attempts
    pause = min(FIRST_PAUSE * 2**attempts.releases, MOST_PAUSE) * _factor(attempt.uid, attempts.releases, "pause")
    return StartAttempts(releases=attempts.releases + 1, until=now + timedelta(seconds=pause))


def next_change(attempts: StartAttempts, uid: str) -> datetime | None:
    """When time alone changes the attempts; None: never."""
    return attempts.until or (_end(attempts, uid) if attempts.since else None)


def explanation(attempts: StartAttempts, minimum: int) -> str:
    """Why a released job has no pods, for people."""
    assert attempts.until is not None, "the job is released"
    at = attempts.until.isoformat(timespec="seconds")
    return (
        f"only a part of minReplicas ({minimum}) was bound to nodes for {PATIENCE:g} s or more: all workers were "
        f"released, so that jobs do not wait for each other's room; created again at {at}"
    )


def _end(attempts: StartAttempts, uid: str) -> datetime:
    assert attempts.since is not None, "a part of the minimum is held"
    return attempts.since + timedelta(seconds=PATIENCE * _factor(uid, attempts.releases, "patience"))


def _factor(uid: str, releases: int, what: str) -> float:
    """From 1 to 2: equal for equal arguments, and otherwise as good as random."""
    digest = hashlib.sha256(f"{uid}/{releases}/{what}".encode()).digest()
    return 1 + int.from_bytes(digest[:4], "big") / 2**32
