"""The time of day. One place, so that a simulation can put its own in."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The time of day, timezone-aware."""
    return datetime.now(UTC)
