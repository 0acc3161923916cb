"""Whether a change of size pays. A resize costs a pause now and gains speed for as long as the size lasts.

All figures are in worker-seconds at the job's current speed, so that gain and cost compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain.sizing import speedup
from elastrain_operator.allocation.snapshot import Job, Policy, Sharing
from elastrain_operator.allocation.utility import pause_of

REST = 10
"""Pauses that pass between two resizes of a job for a mere improvement, if sizes follow measured speeds."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The expected gain and cost of a growth."""

    gain: float
    cost: float
    seconds: float
    """Seconds over which the gain is counted."""

    @property
    def pays(self) -> bool:
        return self.gain > self.cost


def growth(job: Job, before: int, after: int, policy: Policy, node: int) -> Worth:
    """The worth of growing a training job from ``before`` (at least 1) to ``after`` workers. One node takes ``node``.

    New workers train only after ``policy.startup``, and no longer than the job does. The cost is the job's own measured
    pause on all its workers.
    """
    seconds = policy.horizon if job.remaining is None else min(policy.horizon, job.remaining)
    useful = max(seconds - policy.startup, 0.0)
    speeds = speedup.curve(job.measured, node, after, job.batches)
    faster = (speeds[after] / speeds[before] - 1) * before
    return Worth(useful * faster, pause_of(job, policy) * before, seconds)


def may_give(job: Job, policy: Policy, share: int) -> bool:
    """Whether the workers above an equal ``share`` gain more in jobs of equal priority, over the horizon, than the
    pause costs here."""
    return policy.horizon * max(job.size - share, 1) > pause_of(job, policy) * max(job.size, 1)


def thaws(job: Job, policy: Policy, now: datetime) -> datetime | None:
    """When the job may again be resized for a mere improvement; None: now, as before it trains."""
    if job.resized is None or not job.trains:
        return None
    until = job.resized + timedelta(seconds=rest(job, policy))
    return until if until > now else None


def rest(job: Job, policy: Policy) -> float:
    """Seconds after a resize during which the job is not resized for a mere improvement. By measured speeds at most
    ``REST`` of its own pauses: a job whose rescales are short reaches its best size sooner."""
    if policy.sharing is Sharing.EQUAL:
        return policy.hysteresis
    return min(policy.hysteresis, REST * pause_of(job, policy))
