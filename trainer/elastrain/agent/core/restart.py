"""Whether ranks that a signal killed are restarted in place."""

from __future__ import annotations

from collections.abc import Sequence

MAX_RESTARTS = 5
WINDOW = 600.0
"""Seconds."""


def may_restart(restarts: Sequence[float], now: float) -> bool:
    """Whether another restart is permitted. Pure. ``restarts``: times of earlier restarts of this worker.

    A rank that a signal killed (out of memory, a lost device, a manual kill) usually runs after a restart, and a
    restart in place needs no new pod. A rank that keeps dying does not: the worker then ends, and the operator decides
    with a view of the whole job.
    """
    return sum(1 for at in restarts if now - at < WINDOW) < MAX_RESTARTS
