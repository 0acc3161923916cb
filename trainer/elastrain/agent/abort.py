"""When the collectives of a generation must be broken off because somebody in it will not answer any more."""

from __future__ import annotations

from collections.abc import Mapping

from elastrain.api.records import Generation, Member, Phase


def why_abort(
    generation: Generation,
    me: str,
    members: Mapping[str, Member],
    last_seen: Mapping[str, Member],
) -> str | None:
    """Why nobody should wait in ``generation`` any longer, or None while it can still make progress. Pure.

    ``members`` are those that live, ``last_seen`` every record ever seen. A member that is not there has not been
    lost if its last record says that it had finished, or had already stopped for a later generation: then it left the
    way it should, and its part in this one is done. We are not asked about: where others give us up, their broken
    collectives tell our ranks.
    """
    if generation.member(me) is None:
        return None
    for place in generation.members:
        if place.id == me:
            continue
        member = members.get(place.id)
        if member is None:
            last = last_seen.get(place.id)
            if last is not None and (last.phase is Phase.FINISHED or last.generation > generation.number):
                continue
            return f"worker {place.worker} is gone"
        if member.broken >= generation.number:
            return f"worker {place.worker} reports a broken collective"
    return None
