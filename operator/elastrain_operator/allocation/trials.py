"""Fewer workers, tried to learn whether a job needs those that it has. Pure.

A job that has measured one size, or one on one node and one on several, may owe its speed to its workers or not: the
model believes so, and the job keeps accelerators that it may not use. If another job is refused accelerators that would
gain more than the trial costs at best, the job trains with half of its workers until its steps there are measured. The
sizes are then decided by what is known. A third measured size tells enough: no job makes more than ``MOST`` trials.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from elastrain_operator.allocation.grant import Grant
from elastrain_operator.allocation.snapshot import Job, Policy
from elastrain_operator.allocation.worth import age_of, pause_of, stays, utility
from elastrain_resource.sizing import speedup

MOST = 2
"""Trials of a job: one that has measured more sizes and placements makes none."""
PAUSES = 150
"""A job makes a trial when it is as old as so many of its pauses: it costs up to four, two of each job."""
PATIENCE_SECONDS = 300.0
"""A trial without a measured step ends after this time."""


class Trial(NamedTuple):
    """Fewer workers of one job."""

    loss: float
    """Of utility, if the job needs its workers as little as its measurements permit."""
    grant: Grant
    size: int


def trial(grant: Grant, equal: int, node: int, policy: Policy, now: datetime) -> Trial | None:
    """The trial that a job may make now; None: it knows enough, or has to wait. ``equal``: its equal share; ``node``:
    workers of one node."""
    job = grant.job
    sizes = {(m.workers, m.nodes > 1) for m in job.measured}
    least = min((workers for workers, _ in sizes), default=0)
    settled = job.trains and grant.hold is None and grant.goal == job.size == least
    if not settled or len(sizes) > MOST or age_of(job, now) < PAUSES * pause_of(job, policy):
        return None
    size, counts = _half(job), stays(job, policy, now)
    if size >= least or not counts:
        return None
    speeds = speedup.curve(job.measured, node, max(least, equal), job.batches)
    model = speedup.learned(job.measured, job.batches.micro if job.batches else None, sceptical=True)
    hoped = counts * model.speed(size, spans=size > node, batches=job.batches)
    before, after = (utility(job, speed / speeds[equal], policy) for speed in (speeds[least], hoped))
    return Trial(before - after, grant, size)


def lasts(job: Job, now: datetime) -> bool:
    """Whether the job has fewer workers than it has measured, and is to keep them until it has measured these."""
    if not (job.trains and job.measured and job.resized) or job.size >= min(m.workers for m in job.measured):
        return False
    return (now - job.resized).total_seconds() < PATIENCE_SECONDS


def _half(job: Job) -> int:
    """Half of its workers: if the job needs them, the loss is large enough to be reverted."""
    half = -(-job.size // 2)
    return max(half + -half % job.group_size, job.min)
