"""Count each lost worker once, and keep the budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastrain.api.job import RestartCounts
from elastrain_operator.facts import Cause, Loss, Pod


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
