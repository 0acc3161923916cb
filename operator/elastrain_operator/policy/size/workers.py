"""Which pods count as workers, and what new ones are called."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from elastrain_operator.model import Pod

BATCH = 500
"""Most pods created in one go. The next go follows when the watch has shown them; a job of two thousand million workers
thus meets its quota before it has filled anybody's memory."""


def active(pods: Iterable[Pod], leaving: Collection[str], silent: Collection[str]) -> tuple[Pod, ...]:
    """Pods that count as workers: neither ended, nor on their way out, nor lost (``silent``: names)."""
    return tuple(
        p for p in pods if not p.ending and not p.terminating and p.name not in leaving and p.name not in silent
    )


def ordinals(missing: int, unborn: Sequence[int], pods: Iterable[Pod], next_ordinal: int) -> tuple[int, ...]:
    """Ordinals for ``missing`` new pods (at most ``BATCH``): first those that were given out but refused, then new.

    An ordinal that has named a pod is never used again. Where the status was lost, existing pods still tell how far
    the numbers went.
    """
    missing = min(missing, BATCH)
    first = max([next_ordinal, *(p.ordinal + 1 for p in pods)])
    taken = {p.ordinal for p in pods}
    again = [n for n in unborn if n not in taken][:missing]
    return (*again, *range(first, first + missing - len(again)))
