"""When the scripts of a worker's ranks run again, since that of rank 0 was lost before its end. Pure.

After the training rank 0 does what is done once, such as to save the model. The other ranks' scripts have passed that
code, and their processes hold the final state (:class:`~elastrain.api.messages.Holds`). If rank 0 is lost, each keeps
its state in the memory of its node, and starts again: the job resumes from there, without a step to train.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.agent.core.events import JobSnapshot
from elastrain.agent.core.places import Places
from elastrain.agent.core.rank import Rank


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
