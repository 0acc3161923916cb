"""What an agent tells its ranks: who they are, where to train next, what is over, and when to end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elastrain.agent.core.abort import why_abort
from elastrain.agent.core.events import JobSnapshot
from elastrain.agent.core.places import Places
from elastrain.agent.core.rank import Rank
from elastrain.api.messages import Abort, AgentMessage, Exit, Proposed, Welcome


@dataclass(frozen=True, slots=True)
class Known:
    """All that an agent's words depend on, beside the rank that they are for."""

    me: str
    """The member's id."""
    address: str
    lease_ttl: float
    places: Places
    seen: JobSnapshot
    why_leave: str | None
    """Why the worker leaves, if it does."""


def words(rank: Rank, known: Known) -> Iterator[AgentMessage]:
    """What ``rank`` has not been told yet, in order. The rank counts as told what was taken from here."""
    seen = known.seen
    if rank.connected and not rank.welcomed:
        rank.welcomed = True
        yield Welcome(member=known.me, address=known.address, lease_ttl=known.lease_ttl, step=seen.step)
    if not rank.listens or rank.told_exit:
        return
    yield from _aborts(rank, known)  # first what is over: until then a rank may be blocked in it
    if seen.generation is not None and seen.generation.number > max(rank.proposed, default=0):
        rank.proposed.add(seen.generation.number)
        yield Proposed(generation=seen.generation)
        yield from _aborts(rank, known)
    why_exit = _why_exit(rank, known)
    if why_exit is not None:
        rank.told_exit = True
        yield Exit(reason=why_exit)


def _aborts(rank: Rank, known: Known) -> Iterator[Abort]:
    """Of generations that the rank is in, or is connecting to, and should give up."""
    places = known.places
    for number in sorted(rank.proposed & places.numbers - rank.aborted):
        if number < rank.adopted or number <= rank.broken:
            continue
        why = places.fenced.get(number) or why_abort(places[number], known.me, known.seen.ended)
        if why is not None:
            rank.aborted.add(number)
            yield Abort(generation=number, reason=why)


def _why_exit(rank: Rank, known: Known) -> str | None:
    """Why the rank should end its loop, or None."""
    if not rank.ready:
        return None
    seen, inside = known.seen, known.places.mine(rank.adopted) is not None
    if seen.finished and (
        not inside or rank.broken >= rank.adopted or rank.adopted in rank.aborted
    ):  # else it finishes by itself
        return "the job has finished"
    wanted = seen.generation is not None and seen.generation.member(known.me) is not None
    return known.why_leave if not inside and not wanted else None
