"""Values over time in bounded memory. A full series drops every other point and halves the rate of later points, so
that it always reaches back to its start. Pure; ``now`` is seconds since the epoch."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

POINTS = 360
"""Largest number of points: at first 30 minutes at one point per 5 s."""
UNKNOWN = float("nan")
SHARES = 12
"""Parts that one point shows individually; smaller parts together are ``others``."""
OTHERS = "others"


class Spacing:
    """Decides when to keep a point: at most one per ``seconds``, which double each time the series is halved."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last = float("-inf")

    def due(self, now: float) -> bool:
        """Whether a point is due; True counts it as kept."""
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True

    def double(self) -> None:
        self.seconds *= 2


class Figures:
    """A job's values: columns of numbers with common times. 14 kB when full."""

    COLUMNS = ("time", "step", "loss", "ready", "desired")

    def __init__(self, spacing: float = 2.0, points: int = POINTS) -> None:
        self._spacing = Spacing(spacing)
        self._points = points
        self._columns = {name: array("d") for name in self.COLUMNS}
        self._last_size: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self._columns["time"])

    def add(self, now: float, *, step: int | None, loss: float | None, ready: int, desired: int) -> None:
        """Keep a point if one is due or the size has changed: a rescale must show."""
        size = (float(ready), float(desired))
        if not self._spacing.due(now) and size == self._last_size:
            return
        self._last_size = size
        values = (now, *(UNKNOWN if v is None else float(v) for v in (step, loss)), *size)
        for name, value in zip(self.COLUMNS, values, strict=True):
            self._columns[name].append(value)
        if len(self) > self._points:
            self._columns = {name: _halved(column) for name, column in self._columns.items()}
            self._spacing.double()

    def shown(self) -> dict[str, list[float | None]]:
        """The columns in JSON form; None: unknown."""
        return {name: [None if v != v else round(v, 6) for v in column] for name, column in self._columns.items()}  # noqa: PLR0124 - NaN


class Shares:
    """The division of a total over time: at each time the total (None: unknown) and the parts by name."""

    def __init__(self, spacing: float = 5.0, points: int = POINTS) -> None:
        self._spacing = Spacing(spacing)
        self._points = points
        self._rows: list[tuple[float, int | None, dict[str, int]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, now: float, total: int | None, parts: Mapping[str, int]) -> None:
        """Keep a point if one is due."""
        if not self._spacing.due(now):
            return
        self._rows.append((now, total, largest(parts)))
        if len(self._rows) > self._points:
            self._rows = self._rows[::2]
            self._spacing.double()

    def shown(self) -> dict[str, Any]:
        """``{"time": [...], "total": [...], "parts": {name: [...]}}``, with zeros of absent parts."""
        names = sorted({name for _, _, parts in self._rows for name in parts}, key=lambda n: (n == OTHERS, n))
        return {
            "time": [round(time, 1) for time, _, _ in self._rows],
            "total": [total for _, total, _ in self._rows],
            "parts": {name: [parts.get(name, 0) for _, _, parts in self._rows] for name in names},
        }


def largest(parts: Mapping[str, int], most: int = SHARES) -> dict[str, int]:
    """The ``most`` largest parts (equal ones by name), the rest as :data:`OTHERS`; no zeros."""
    ordered = sorted(((n, v) for n, v in parts.items() if v), key=lambda part: (-part[1], part[0]))
    if len(ordered) <= most:
        return dict(ordered)
    return {**dict(ordered[:most]), OTHERS: sum(v for _, v in ordered[most:])}


def _halved(column: Sequence[float]) -> array[float]:
    return array("d", column[::2])
