"""What a speed or a change of size is worth to a job. Pure.

A resize costs a pause now and gains speed for as long as the size lasts; gain and cost are in worker-seconds at the
job's current speed. The utility is a concave function of a job's speed as a part of that with an equal share (alpha
fairness: Mo & Walrand, IEEE/ACM ToN 2000): the lower the exponent, the closer to max-min fairness.

A size other than the present one counts for less, by the cost of the change over the job's age: how long the job still
trains is unknown, and its age is the best guess (Pollux, OSDI 2021, 4.2). The more often a job was resized, the more a
change has to gain, and a difference within the noise of step times changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain_operator.allocation.snapshot import Job, Policy, Sharing
from elastrain_resource.sizing import speedup

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


NOISE = 0.07
"""A change must gain more than this part of the job's speed."""
FREE_RESCALES, RESCALE_SECONDS = 6, 300.0
"""A job is resized for a mere improvement only if it was rescaled fewer times than six and once for each 300 s of its
age: at most 12 times an hour in the long run."""
EXPONENTS = {Sharing.BALANCED: -4.0, Sharing.EFFICIENT: -1.0}
"""Of the utility: (speed / speed with an equal share) ** exponent / exponent."""


def utility(job: Job, part: float, policy: Policy) -> float:
    """``part``: the job's speed, of that with an equal share."""
    power = EXPONENTS[policy.sharing]
    worth: float = max(part, 1e-3) ** power / power
    return policy.weights.get(job.namespace, 1) * worth


def pause_of(job: Job, policy: Policy) -> float:
    """Seconds of a rescale: as measured, else as assumed."""
    return policy.pause if job.pause is None else job.pause


def age_of(job: Job, now: datetime) -> float:
    """Seconds."""
    return max(now.timestamp() - job.created, 0.0)


def stays(job: Job, policy: Policy, now: datetime) -> float:
    """What part of another size's speed counts, since changing to it costs a pause; 1: the job does not train yet."""
    if not job.trains:
        return 1.0
    age, pause = age_of(job, now), pause_of(job, policy)
    if job.rescales >= FREE_RESCALES + age / RESCALE_SECONDS:
        return 0.0
    part = (age - job.rescales * pause) / (age + pause) if age + pause else 1.0
    if job.remaining is not None:
        part = min(part, 1 - pause / job.remaining if job.remaining > pause else 0.0)
    return min(max(part, 0.0), 1 - NOISE)
