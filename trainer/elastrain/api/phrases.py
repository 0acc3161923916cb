"""Words that everybody who speaks to people needs."""

from __future__ import annotations


def headcount(count: int) -> str:
    """So many workers, in words."""
    return "1 worker" if count == 1 else f"{count} workers"
