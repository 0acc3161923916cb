"""Which pods count as workers, and the ordinals of new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from elastrain_operator.facts import Pod

BATCH = 500
"""Most pods created in one pass. The next pass follows when the watch has shown them, so that a job of two thousand
million workers meets its quota before it fills any memory."""


def active(pods: Iterable[Pod], leaving: Collection[str], silent: Collection[str]) -> tuple[Pod, ...]:
    """Pods that count as workers: not ended, terminating, ``leaving`` or ``silent`` (names)."""
    return tuple(
        p for p in pods if not p.ending and not p.terminating and p.name not in leaving and p.name not in silent
    )


def ordinals(missing: int, open_ordinals: Sequence[int], pods: Iterable[Pod], next_ordinal: int) -> tuple[int, ...]:
    """Ordinals for ``missing`` new pods (at most ``BATCH``): first those whose pod was refused, then new ones.

    An ordinal that has named a pod is never reused. If the status was lost, the existing pods show the highest one.
    """
    missing = min(missing, BATCH)
    first = max([next_ordinal, *(p.ordinal + 1 for p in pods)])
    taken = {p.ordinal for p in pods}
    again = [n for n in open_ordinals if n not in taken][:missing]
    return (*again, *range(first, first + missing - len(again)))
