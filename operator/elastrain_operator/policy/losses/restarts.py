"""Count each lost worker once, keep the budget, and pace replacements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain.api.job import LastFailure, RestartCounts
from elastrain_operator.model import Cause, Loss, Pod
from elastrain_operator.policy.losses.causes import judge

FIRST_DELAY = 10.0
"""Seconds before the second consecutive replacement; the first is immediate."""
MAX_DELAY = 300.0
SHORT_LIFE = 60.0
"""Seconds: a killed worker that lived for less is part of a crash loop, whatever the cause."""
RECENT = 600.0
"""Seconds for which such a worker delays the next one."""


@dataclass(frozen=True, slots=True)
class Count:
    """Restarts by cause, each lost worker counted once."""

    restarts: RestartCounts
    counted: tuple[str, ...]
    """UIDs of lost pods that are counted in ``restarts`` and still exist in the API server."""
    fresh: tuple[Loss, ...]
    """Losses counted in this pass."""


def count(restarts: RestartCounts, counted: Iterable[str], losses: Sequence[Loss], pods: Iterable[Pod]) -> Count:
    """Add each loss that is not counted yet; remove the UIDs of pods that no longer exist."""
    known = frozenset(counted)
    fresh = tuple(loss for loss in losses if loss.pod.uid not in known)
    more = {cause.value: getattr(restarts, cause) + sum(x.cause is cause for x in fresh) for cause in Cause}
    existing = {p.uid for p in pods}
    remembered = (known | {x.pod.uid for x in fresh}) & existing
    return Count(RestartCounts(**more), tuple(sorted(remembered)), fresh)


def exhausted(restarts: RestartCounts, limit: int) -> bool:
    """Whether the script failed more often than ``backoffLimit`` allows."""
    return restarts.user > limit


def not_before(restarts: RestartCounts, pods: Iterable[Pod], now: datetime) -> datetime | None:
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


def after_last(
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
