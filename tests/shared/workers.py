"""Workers of a job named ``job``, as the operator's decisions see them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from elastrain_operator.model import Pod


def worker(ordinal: int, now: datetime, *, age: float = 100.0, started: bool = True, **fields: Any) -> Pod:
    """``job-ORDINAL``, made ``age`` seconds before ``now``; ready if it has ``started`` and nothing else is said."""
    created = now - timedelta(seconds=age)
    return Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, created, **{"started": started, "ready": started, **fields})
