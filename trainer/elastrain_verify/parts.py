"""Models that depend on how a batch is cut, and how far rounding alone moves a model. Pure.

BatchNorm's statistics, and random numbers drawn in the loop body, belong to the part of the batch that a rank computes.
Such a model is another one with another number of workers, with DDP as well. It is judged by a reference that computes
the same parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from elastrain_verify.compare import Bounds, distance, family, scales_of
from elastrain_verify.history import BATCH, Committed, History

ROUNDING, ROUNDING_OF_HALVES = 1e-4, 5e-2
"""Two runs of one model that are further apart, relative to the largest element of a family, differ by more than the
order of additions; the second if the script may compute in float16 or bfloat16."""
NOISE = 8.0
"""A run may be so many times as far from the reference as the reference from itself with each batch cut."""
Schedule = tuple[tuple[int, int], ...]


def schedule(run: History) -> Schedule:
    """(step, parts): from this step on (from 0), ``run`` has cut each global batch into so many parts."""
    parts: dict[int, int] = {}
    for process in run.processes:
        for c in process.committed:
            if not c.ended:
                parts[c.step - 1] = max(parts.get(c.step - 1, 1), c.share[1])
    found: list[tuple[int, int]] = []
    for step in sorted(parts):
        if not found or found[-1][1] != parts[step]:
            found.append((step, parts[step]))
    return tuple(found)


def is_cut(cut: Schedule) -> bool:
    """Whether a batch has more than one part."""
    return any(parts > 1 for _, parts in cut)


def measured(whole: History, cut: History, epsilon: float, most: float = ROUNDING) -> Bounds | None:
    """Bounds by the distance of two references, of which one has cut its batches; None: it is no rounding.

    ``epsilon``: the relative distance of two neighbouring numbers, which no bound is smaller than. ``most``: the
    relative distance from which on it is no rounding.
    """
    other = {(c.step, c.ended): c for p in cut.processes for c in p.committed}
    apart: dict[str, float] = {}
    for process in whole.processes:
        for c in process.committed:
            if (c.step, c.ended) in other and not _measure(c, other[c.step, c.ended], apart, most):
                return None
    return Bounds(epsilon, {kind: NOISE * value for kind, value in apart.items()})


def wider(one: Bounds, other: Bounds) -> Bounds:
    """Bounds that permit what either of them does."""
    mine, theirs = one.measured or {}, other.measured or {}
    both = {kind: max(mine.get(kind, 0.0), theirs.get(kind, 0.0)) for kind in mine.keys() | theirs.keys()}
    return Bounds(max(one.relative, other.relative), both)


def _measure(one: Committed, other: Committed, apart: dict[str, float], most: float) -> bool:
    """Raise the distances in ``apart`` to those of two states; False: they differ by more than rounding."""
    scales = scales_of(one.entries)
    for name in (one.entries.keys() & other.entries.keys()) - {BATCH}:
        found = _distance(one.entries[name], other.entries[name])
        kind = family(name)
        scale = scales.get(kind) or _largest(one.entries[name])
        if not found <= most * scale and not name.endswith("(buffer)"):
            return False
        apart[kind] = max(apart.get(kind, 0.0), found)
    return True


def _distance(one: Any, other: Any) -> float:
    if one == other:
        return 0.0
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one["type"] == other["type"]:
        return distance(one, other)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    return math.inf


def _largest(value: Any) -> float:
    return abs(value) if isinstance(value, float) else 0.0
