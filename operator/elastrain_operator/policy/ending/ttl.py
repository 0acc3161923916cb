"""When a finished job is deleted."""

from __future__ import annotations

from datetime import datetime, timedelta


def expiry(ttl_seconds: int | None, completion: datetime | None) -> datetime | None:
    """When the job is to be deleted; None: never, or not finished."""
    if ttl_seconds is None or completion is None:
        return None
    return completion + timedelta(seconds=ttl_seconds)
