"""Workers of a job named ``job``, as the operator's decisions see them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from elastrain_operator.model import Pod


def worker(ordinal: int, now: datetime, *, age: float = 100.0, started: bool = True, **fields: Any) -> Pod:
    """``job-ORDINAL``, made ``age`` seconds before ``now``; ready if it has ``started`` and nothing else is said."""
    created = now - timedelta(seconds=age)
    return Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, created, **{"started": started, "ready": started, **fields})


def workers_at(now: datetime, *, node: str = "", **usual: Any) -> Callable[..., Pod]:
    """``worker`` with the fields that are usual in a test module; ``node="n{}"``: each on a node of its own."""

    def made(ordinal: int, **fields: Any) -> Pod:
        own = {"node": node.format(ordinal)} if node else {}
        return worker(ordinal, now, **{**usual, **own, **fields})

    return made
