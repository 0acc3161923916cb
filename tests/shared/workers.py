"""Workers of a job named ``job``, in the form of the operator's decisions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from elastrain_operator.facts import Pod


def worker(ordinal: int, now: datetime, *, age: float = 100.0, started: bool = True, **fields: Any) -> Pod:
    """``job-ORDINAL``, created ``age`` seconds before ``now``; by default ready if it has ``started``."""
    created = now - timedelta(seconds=age)
    return Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, created, **{"started": started, "ready": started, **fields})


def workers_at(now: datetime, *, node: str = "", **usual: Any) -> Callable[..., Pod]:
    """``worker`` with the usual fields of a test module; ``node="n{}"``: each on a separate node."""

    def made(ordinal: int, **fields: Any) -> Pod:
        own = {"node": node.format(ordinal)} if node else {}
        return worker(ordinal, now, **{**usual, **own, **fields})

    return made
