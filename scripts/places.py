"""Places that a change of a kind touches: the table of CONTRIBUTING.md, and where the names of its examples stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECTION = "## What a change touches"
PACKAGES = (
    "trainer/elastrain",
    "trainer/elastrain_cli",
    "trainer/elastrain_resource",
    "trainer/elastrain_torchrun",
    "operator",
)
PAGE = "docs/reference/conditions.md"
"""The one page of reference that is written by hand."""


class Row(NamedTuple):
    """One kind of change."""

    kind: str
    example: str
    files: frozenset[str]


def rows() -> list[Row]:
    """The table."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([^|]+) \| `(\w+)` \| ([^|]+) \|$", text, re.MULTILINE)
    return [Row(kind, example, frozenset(re.findall(r"`(\w+/[\w/.]+)`", files))) for kind, example, files in found]


def places(name: str) -> frozenset[str]:
    """The files that have ``name``, in camel case, snake case or as a constant; guests are no part of the core."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() if name[0].islower() else name
    word = re.compile(rf"\b({name}|{snake}|{snake.upper()}(_\w+)?)\b")
    files = [*(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")), ROOT / PAGE]
    return frozenset(str(path.relative_to(ROOT)) for path in files if word.search(path.read_text()))
