"""Whether ranks that a signal killed are started again in place."""

from __future__ import annotations

from collections.abc import Sequence

MAX_RESTARTS = 5
WINDOW = 600.0
"""Seconds."""


def may_restart(restarts: Sequence[float], now: float) -> bool:
    """Pure. ``restarts`` are the times of earlier restarts of this worker.

    A rank that a signal killed (out of memory, a lost device, an operator's hand) usually lives when started again, and
    starting it in place saves scheduling a pod. One that keeps dying does not get better by it: then the worker ends
    and the operator decides with a view of the whole job.
    """
    return sum(1 for at in restarts if now - at < WINDOW) < MAX_RESTARTS
