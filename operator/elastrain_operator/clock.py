"""The time of day, in one place, so that a simulation can replace it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The time of day, timezone-aware."""
    return datetime.now(UTC)
