"""Figures over several runs, and how they are written. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class Model(BaseModel):
    """Base of all records that ``--json`` writes. Times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Spread(Model):
    """Minimum, median and maximum of one figure over the runs."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """The spread of the values that are not None; None if there are none."""
        known = [v for v in values if v is not None]
        if not known:
            return None
        return cls(min=min(known), median=statistics.median(known), max=max(known))


def text(values: Iterable[float | None], form: str, scale: float = 1.0) -> str:
    """``0.21 / 0.24 / 0.31`` of ``values``; one figure where all runs agree as written; ``–`` without values."""
    spread = Spread.of(values)
    if spread is None:
        return "–"
    shown = [format(scale * v, form) for v in (spread.min, spread.median, spread.max)]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def text_of(items: Iterable[T], figure: Callable[[T], float | None], form: str) -> str:
    """:func:`text` of ``figure`` of each of ``items``."""
    return text((figure(item) for item in items), form)


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest of ``values`` that at least ``part`` (0 to 1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The median of the slopes between all pairs of points (Theil 1950, Sen 1968); outliers do not tilt it.

    ``xs`` must differ from each other.
    """
    pairs = [(i, j) for i in range(len(xs)) for j in range(i + 1, len(xs))]
    return statistics.median((ys[j] - ys[i]) / (xs[j] - xs[i]) for i, j in pairs)
