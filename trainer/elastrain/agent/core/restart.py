"""When ranks start again, and what they keep. Pure.

Those that a signal killed start again in place, and the others keep process and state meanwhile. The scripts of all
ranks run again if that of rank 0 was lost before its end. After the training rank 0 does what is done once, such as to
save the model. The other ranks' scripts have passed that code, and their processes hold the final state
(:class:`~elastrain.api.messages.Holds`). Each keeps its state in the memory of its node, and starts again: the job
resumes from there, without a step to train.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.agent.core.bounds import STAND_BY_SECONDS, Bounds, passed
from elastrain.agent.core.events import JobSnapshot
from elastrain.agent.core.places import Places
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


# ---- scripts that run again --------------------------------------------------------------------------------------
def why_repeat(ranks: Sequence[Rank], places: Places, seen: JobSnapshot | None) -> str:
    """Why the scripts run again; empty: they do not."""
    if kept := next((r.kept for r in ranks if r.kept), ""):
        return kept
    number = min((r.adopted for r in ranks), default=0)
    generation = places.generation(number)
    first = generation.first if generation is not None and places.mine(number) is not None else None
    if first is None or seen is None or seen.finished or not any(r.is_held for r in ranks):
        return ""
    if first.id == places.me:
        died = ranks[0].exited if ranks[0].ended == "finished" else None
        return f"rank 0 was killed by signal {died.signal} before its script had ended" if died and died.signal else ""
    # The leader ends a generation after its training for this reason only; or a member was lost as it ended.
    over = number in seen.ended and (seen.members is None or first.id not in seen.members)
    return f"rank 0 on worker {first.worker} was lost before its script had ended" if over else ""


def script_over(ranks: Sequence[Rank], places: Places) -> bool:
    """Whether rank 0 is among ``ranks``, and its script has ended."""
    exited, number = ranks[0].exited, min(r.adopted for r in ranks)
    if ranks[0].ended != "finished" or exited is None or exited.code or exited.signal:
        return False
    return places.rank(number, 0) == 0


def awaited(ranks: Sequence[Rank]) -> list[int]:
    """Local ranks that hold a state and have not kept it yet."""
    holders = (r for r in ranks if r.holds or (r.adopted and not r.learning))
    return [r.local_rank for r in holders if not r.kept and r.exited is None]
