"""Where the difference goes: two profiles of as many steps each, function by function. Pure but for reading them."""

from __future__ import annotations

import pstats
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Row(BaseModel):
    """One function. Microseconds of a step; cProfile makes calls of Python functions look dearer than they are."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    function: str
    calls: float
    """Of a step, with elastrain."""
    own: float
    """In the function itself, with elastrain."""
    extra: float
    """... less what the baseline spends in it."""
    whole: float
    """With all that it calls."""


Functions = dict[str, tuple[float, float, float]]
"""Name -> calls, own and whole microseconds of a step."""


def read(path: Path, steps: int) -> Functions:
    """A profile of ``steps`` steps that cProfile has written."""
    raw = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    found: Functions = {}
    for (file, _line, function), (_, calls, own, whole, _callers) in raw.items():
        name = f"{_short(file)}:{function}" if file != "~" else function
        before = found.get(name, (0.0, 0.0, 0.0))
        figures = (calls / steps, 1e6 * own / steps, 1e6 * whole / steps)
        found[name] = (before[0] + figures[0], before[1] + figures[1], before[2] + figures[2])
    return found


def difference(ours: Functions, theirs: Functions) -> list[Row]:
    """Functions by what they cost more than in the baseline, dearest first."""
    rows = [
        Row(function=name, calls=calls, own=own, extra=own - theirs.get(name, (0.0, 0.0, 0.0))[1], whole=whole)
        for name, (calls, own, whole) in ours.items()
    ]
    return sorted(rows, key=lambda row: -row.extra)


def _short(file: str) -> str:
    """The last two parts of a path."""
    return "/".join(Path(file).parts[-2:])
