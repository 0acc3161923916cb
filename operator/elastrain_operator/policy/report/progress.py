"""Training as seen from outside: the generation in force, its live workers, the last rescale."""

from __future__ import annotations

from datetime import datetime

from elastrain.api.job import GenerationStatus, LastRescale
from elastrain.api.records import Rescale
from elastrain_operator.facts import Coordination


def in_force(previous: GenerationStatus | None, seen: Coordination) -> tuple[GenerationStatus | None, int]:
    """The generation that trains, and the number of its live workers.

    A proposed generation is in force as soon as one of its members reports that it has adopted it (ranks adopt it
    together; the other reports follow). Until then the generation before (``previous``, from the status) is.
    """
    newest = seen.generation
    if newest is None:
        return previous, 0
    ids = {m.id for m in newest.members}
    alive = [m for m in seen.members if m.id in ids]
    if any(m.generation >= newest.number for m in alive) or not newest.members:
        return GenerationStatus(number=newest.number, size=len(newest.members), reason=newest.reason), len(alive)
    if previous is None:
        return None, 0
    placed = {m.id for m in seen.earlier(previous.number)}
    return previous, sum(m.id in placed or m.generation == previous.number for m in seen.members)


def last_rescale(previous: LastRescale | None, seen: Coordination, now: datetime) -> LastRescale | None:
    """The newest rescale that the trainer measured, with the time of the operator's first observation.

    The start (from 0 ranks) does not count.
    """
    measured = [r for r in seen.progress.rescales if r.from_size > 0] if seen.progress else []
    if not measured:
        return previous
    newest = _as_status(measured[-1])
    if previous and newest == previous.model_copy(update={"time": None}):
        return previous
    return newest.model_copy(update={"time": now.isoformat()})


def _as_status(rescale: Rescale) -> LastRescale:
    return LastRescale(
        from_=rescale.from_size,
        to=rescale.to_size,
        reason=rescale.reason,
        pause_seconds=rescale.pause_seconds,
        lost_steps=rescale.lost_steps,
        phases=rescale.phases,
    )
