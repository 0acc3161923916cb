"""The files that a script writes, compared between runs: texts by their words and numbers, others by their presence.

Two references show what of a file is not repeatable, such as times and identifiers: that is not compared. Files that
only a job writes, such as one for each rank, are not compared either. Pure, except that :func:`written` reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 20
"""Larger files are compared by their presence."""
_RELATIVE, _ABSOLUTE = 1e-3, 1e-6
"""Numbers in texts are rounded: on the edge of a digit they may be further apart than what they were made from."""
_TOKEN = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\w+|[^\w\s]|\n")
_TIME = re.compile(r"\d{4}-\d\d-\d\d|\d\d?:\d\d(?::\d\d)?(?:[.,]\d+)?")
"""Dates and times of day."""
_SKIPPED = ("__pycache__", ".elastrain")
Tokens = Sequence[str | None]
"""Words, numbers, signs and line ends of a text; None: not compared. Empty for a file that is no text."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one in the files of a run."""

    name: str
    expected: str
    found: str
    lacks: bool = False
    """The job's file has fewer words, or is absent."""


def present(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file in ``folder``, by relative path; links are not followed."""
    found = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in names:
            path = Path(root) / name
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                found[str(path.relative_to(folder))] = (stat.st_size, stat.st_mtime_ns)
    return found


def written(folder: Path, before: Mapping[str, tuple[int, int]]) -> dict[str, Tokens]:
    """The files in ``folder`` that are new or changed since ``before``."""
    return {name: _tokens(folder / name) for name, facts in present(folder).items() if before.get(name) != facts}


def _tokens(path: Path) -> Tokens:
    if path.stat().st_size > MOST_BYTES:
        return ()
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return ()
    return () if "\0" in text else _TOKEN.findall(_TIME.sub("time", text))


def repeatable(one: Mapping[str, Tokens], other: Mapping[str, Tokens]) -> dict[str, Tokens]:
    """What two references agree on: files that both have written, without the words that differ; a text of another
    length by its presence."""
    kept: dict[str, Tokens] = {}
    for name in one.keys() & other.keys():
        mine, theirs = one[name], other[name]
        alike = len(mine) == len(theirs)
        kept[name] = [a if a == b else None for a, b in zip(mine, theirs, strict=True)] if alike else ()
    return kept


def difference(
    expected: Mapping[str, Tokens], found: Mapping[str, Tokens], ranks: int, *, words: bool = True
) -> Difference | None:
    """The first difference of a job's files. A 1 may be the number of ``ranks``.

    ``words``: whether they are compared, and not only their number: the states are equal to those of the reference.
    """
    for name in sorted(expected):
        if name not in found:
            return Difference(name, "written", "absent", lacks=True)
        mine, theirs = expected[name], found[name]
        if not mine:
            continue
        if (lines := mine.count("\n")) != (others := theirs.count("\n")) or len(mine) != len(theirs):
            had, has = f"{lines} lines, {len(mine)} words", f"{others} lines, {len(theirs)} words"
            return Difference(name, had, has, lacks=len(theirs) < len(mine))
        for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if words and not _equal(a, b, ranks):
                line = list(mine[:number]).count("\n") + 1
                return Difference(name, f"{a!r} in line {line}", repr(b))
    return None


def _equal(one: str | None, other: str | None, ranks: int) -> bool:
    if one is None or one == other or (one == "1" and other == str(ranks)):
        return True
    try:
        a, b = float(one), float(other or "")
    except ValueError:
        return False
    rounded = any(sign in one for sign in ".eE")
    return rounded and abs(a - b) <= max(_RELATIVE * max(abs(a), abs(b)), _ABSOLUTE)
