"""Whether ranks that a signal killed start again in place, and which ranks keep process and state meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.agent.core.bounds import STAND_BY_SECONDS, Bounds, passed
from elastrain.agent.core.rank import Rank
from elastrain.api.settings import Shards

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


def to_start_again(ranks: Sequence[Rank]) -> tuple[int, ...]:
    """Local ranks of the killed ranks if only they have to start again; empty if all ranks must."""
    dead = tuple(r.local_rank for r in ranks if r.exited and r.exited.signal)
    mates = [r for r in ranks if r.local_rank not in dead]
    return dead if mates and all(r.can_stay for r in mates) else ()


def in_vain(ranks: Sequence[Rank], bounds: Bounds, now: float) -> str:
    """Why ranks must no longer stand by; empty: they may, or none does. Clears the bound if all are ready."""
    if bounds.stand_by is None:
        return ""
    missing = [r.local_rank for r in ranks if not r.ready]
    if not missing:
        bounds.stand_by = None
    elif any(r.ended or r.exited for r in ranks):
        return f"a rank has ended, and local ranks {missing} are not ready after a killed rank started again"
    elif passed(bounds.stand_by, now):
        return f"local ranks {missing} were not ready {STAND_BY_SECONDS:g} s after a killed rank started again"
    return ""


def hold_all(ranks: Sequence[Rank], shards: Shards) -> bool:
    """Whether ranks that have kept their processes hold the whole training state, in ``shards`` parts, or all parts
    that their worker has of a larger group."""
    return shards != "all" and len({r.local_rank % shards for r in ranks if r.holds}) == min(shards, len(ranks))
