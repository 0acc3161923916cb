"""When the next worker may be created: the one place of all waits. Pure.

A wait follows from losses (endings of pods that exist, the last failure whose pod is gone, a streak of losses without a
committed step, workers that did not start in time), or from the API server's refusal of a pod. The latest one counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from elastrain_operator.facts import Cause, Pod, Refusal
from elastrain_operator.policy.losses.causes import judge
from elastrain_resource.job import JobSpec, LastFailure, LossStreak, RestartCounts, Withdrawal

FIRST_DELAY = 10.0
"""Seconds before the second consecutive replacement; the first is immediate."""
MAX_DELAY = 300.0
SHORT_LIFE = 60.0
"""Seconds: a killed worker that lived for less is part of a crash loop, whatever the cause."""
RECENT = 600.0
"""Seconds for which such a worker delays the next one."""
REFUSAL_DELAYS = (2.0, 5.0, 15.0, 60.0)
"""Seconds before a refused pod is retried, by the number of consecutive refusals."""


def after_losses(
    spec: JobSpec,
    restarts: RestartCounts,
    *,
    last: LastFailure | None,
    streak: LossStreak | None,
    withdrawal: Withdrawal | None,
    pods: Sequence[Pod],
    now: datetime,
) -> datetime | None:
    """When losses let the next worker be created; None: now."""
    waits = (
        after_endings(restarts, pods, now),
        after_last_failure(restarts, last, pods, now),
        after_streak(spec, streak),
        datetime.fromisoformat(withdrawal.until) if withdrawal else None,
    )
    return latest(waits, now)


def after_refusal(refusal: Refusal | None, generation: int | None) -> datetime | None:
    """When a refused pod is tried again; None: at once, as after a change of the spec."""
    if refusal is None or refusal.generation != generation:
        return None
    delay = REFUSAL_DELAYS[min(refusal.attempts, len(REFUSAL_DELAYS)) - 1]
    return refusal.at + timedelta(seconds=max(delay, refusal.retry))


def latest(waits: Iterable[datetime | None], now: datetime) -> datetime | None:
    """The end of the longest wait; None: it is over."""
    last = max((w for w in waits if w), default=None)
    return last if last and last > now else None


def after_streak(spec: JobSpec, streak: LossStreak | None) -> datetime | None:
    """At once after the first round of losses without a committed step, then with delays up to 5 min."""
    if streak is None:
        return None
    rounds = math.ceil(streak.count / max(spec.desired_replicas * spec.group_size, 1))
    wait = delay(rounds)
    return datetime.fromisoformat(streak.time) + timedelta(seconds=wait) if wait else None


def after_endings(restarts: RestartCounts, pods: Iterable[Pod], now: datetime) -> datetime | None:
    """When the next worker may be created; None: at once.

    Exponential from 10 s to 5 min in the number of script failures or of recent short lives, whichever gives more. It
    runs from the last such ending as this operator observed it, so it needs no state of its own; after a start of the
    operator it may run anew, for at most 5 min.
    """
    ended = [(p, loss) for p in pods if p.ending and (loss := judge(p))]
    failed = [p for p, loss in ended if loss.cause is Cause.USER]
    short = [p for p, loss in ended if loss.cause is Cause.INFRASTRUCTURE and _is_short(p, now)]
    waits = [_wait(failed, restarts.user), _wait(short, len(short))]
    latest = max((w for w in waits if w), default=now)
    return latest if latest > now else None


def after_last_failure(
    restarts: RestartCounts, last: LastFailure | None, pods: Iterable[Pod], now: datetime
) -> datetime | None:
    """The same for a script failure whose pod is gone, as Kubernetes removes ended pods beyond a number; None: at once.

    ``last``: the newest failure, as in the status. Its time may be another operator's, so it counts as ``now`` at most.
    """
    if last is None or last.cause != Cause.USER or any(p.name == last.worker for p in pods):
        return None
    return min(datetime.fromisoformat(last.time), now) + timedelta(seconds=delay(restarts.user))


def _wait(ended: Sequence[Pod], failures: int) -> datetime | None:
    """A worker that had run for longer than ``RECENT`` starts a new series."""
    last = max(ended, key=_ended_at, default=None)
    if last is None or _lived(last) > RECENT:
        return None
    return _ended_at(last) + timedelta(seconds=delay(failures))


def delay(failures: int) -> float:
    """Seconds to wait after this number of failures."""
    return 0.0 if failures <= 1 else min(FIRST_DELAY * 2 ** min(failures - 2, 16), MAX_DELAY)


def _ended_at(pod: Pod) -> datetime:
    assert pod.ending is not None
    return pod.ending.at


def _is_short(pod: Pod, now: datetime) -> bool:
    return _lived(pod) < SHORT_LIFE and (now - _ended_at(pod)).total_seconds() < RECENT


def _lived(pod: Pod) -> float:
    """Seconds; of a pod that has ended before this operator started, at least 0."""
    assert pod.ending is not None
    ran = pod.ending.ran
    return (pod.ending.at - pod.seen).total_seconds() if ran is None else ran
