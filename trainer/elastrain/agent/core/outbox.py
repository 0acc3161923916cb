"""The pending messages to an agent's ranks: their identity, the next generation, ended generations, the exit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elastrain.agent.core.events import JobSnapshot
from elastrain.agent.core.places import Places
from elastrain.agent.core.rank import Rank
from elastrain.agent.settings import Settings
from elastrain.api.messages import Abort, AgentMessage, Exit, Located, Proposed, Repeat, Welcome
from elastrain.api.records import Phase


@dataclass(frozen=True, slots=True)
class RankContext:
    """What the messages depend on, apart from their rank."""

    me: str
    """The member's id."""
    settings: Settings
    places: Places
    seen: JobSnapshot
    why_leave: str | None
    """Why the worker leaves; None: it stays."""
    why_repeat: str = ""
    """Why the scripts run again after their end; empty: they do not."""
    script_over: bool = False
    """Rank 0 is of this worker, and its script has ended. The job has finished when all ranks of the worker have."""


def messages_for(rank: Rank, context: RankContext) -> Iterator[AgentMessage]:
    """The messages that ``rank`` has not received yet, in order. Each yielded message counts as sent."""
    seen = context.seen
    if rank.connected and not rank.welcomed:
        rank.welcomed = True
        my = context.settings
        yield Welcome(
            member=context.me,
            address=my.address,
            node=my.node,
            lease_ttl=my.lease_ttl,
            settings=my.ranks,
            first_shard=my.place * my.nproc,
            step=seen.step,
            saved_step=seen.saved_step,
        )
    if rank.waits and rank.is_held:
        yield from _after_script(rank, context)
    if not rank.listens or rank.told_exit:
        return
    if rank.locating or _waits_in_vain(rank, context):
        rank.locating, rank.located = False, seen.loop
        yield Located(step=seen.step, training=seen.training, loop=seen.loop)
    yield from _aborts(rank, context)  # first: a rank may be blocked in a generation that has ended
    if seen.generation is not None and seen.generation.number > max(rank.proposed, default=0):
        rank.proposed.add(seen.generation.number)
        yield Proposed(generation=seen.generation)
        yield from _aborts(rank, context)
    why_exit = _why_exit(rank, context)
    if why_exit is not None:
        rank.told_exit = True
        yield Exit(reason=why_exit, finished=seen.finished and not seen.diverged)


def _after_script(rank: Rank, context: RankContext) -> Iterator[AgentMessage]:
    """To a rank that holds the final state for rank 0."""
    seen = context.seen
    # A worker that leaves holds the state to the end of its time, unless another one does.
    spare = context.why_leave is not None and any(
        m.phase is Phase.FINISHED for i, m in (seen.members or {}).items() if i != context.me
    )
    over = seen.finished or context.script_over
    if not rank.told_exit and (over or spare):
        rank.told_exit = True
        yield Exit(reason="the job has finished" if over else str(context.why_leave), finished=over)
    elif not rank.told_exit and not rank.told_repeat and context.why_repeat and context.why_leave is None:
        rank.told_repeat = True
        yield Repeat(why=context.why_repeat)


def _waits_in_vain(rank: Rank, context: RankContext) -> bool:
    """Whether the job has left the loop in which the rank waits for a generation, and the rank has not been told."""
    if not rank.ready or context.places.mine(rank.adopted) is not None:
        return False
    return context.seen.training and max(rank.loop, rank.located) < context.seen.loop


def _aborts(rank: Rank, context: RankContext) -> Iterator[Abort]:
    """Aborts of ended generations that the rank trains in or connects to.

    The leader decides which have ended, because only the leader sees all members. Members that left as planned do not
    count.
    """
    places = context.places
    for number in sorted(rank.proposed & places.numbers - rank.aborted):
        if number < rank.adopted or number <= rank.broken:
            continue
        ended = None if places.mine(number) is None else context.seen.ended.get(number)
        if (why := places.fenced.get(number) or ended) is not None:
            rank.aborted.add(number)
            yield Abort(generation=number, reason=why)


def _why_exit(rank: Rank, context: RankContext) -> str | None:
    """Why the rank must end its loop; None: it continues."""
    if not rank.ready:
        return None
    seen, inside = context.seen, context.places.mine(rank.adopted) is not None
    if seen.finished and (
        seen.diverged or not inside or rank.broken >= rank.adopted or rank.adopted in rank.aborted
    ):  # otherwise it finishes by itself
        return f"the job has failed: {seen.diverged}" if seen.diverged else "the job has finished"
    wanted = seen.generation is not None and seen.generation.member(context.me) is not None
    return context.why_leave if not inside and not wanted else None
