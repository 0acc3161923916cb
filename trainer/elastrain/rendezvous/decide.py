"""Which generation comes next. Pure: the same view, memory and time always give the same action.

The leader runs :func:`remember` and :func:`decide` on every change; :mod:`elastrain.rendezvous.driver` acts on the
result. A new leader begins with an empty memory: waits begin anew. Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from elastrain.api.records import Generation, GenerationMember
from elastrain.jobstate import RegisteredMember
from elastrain.rendezvous.view import View

MAX_OUTSTANDING = 6
"""Proposals that may be newer than the oldest generation in force. Ranks carry, with each step, one readiness flag per
proposal in 8 slots by number modulo 8: the one in force, these, and one slot kept free."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the leader waits, in seconds."""

    settle: float = 3.0
    """For members that are still warming, so that several joiners make one change; and at the start for more members
    than the least number."""
    adopt: float = 60.0
    """For the newest generation to be adopted before members are added to it."""
    reenter: float = 45.0
    """For members of a broken generation that live but are not ready (stock torchrun stops its workers first, for up to
    30 s)."""
    doubt: float = 0.1
    """After collectives failed and no loss is known: a killed rank's peers see its sockets close a few
    milliseconds before its agent has reaped it and said so. Forming the same generation again would be in vain."""
    probe: float = 1.0
    """For the answers of silent members to a probe, before a broken generation with all its members is formed again."""
    tell: float = 0.25
    """After a generation was seen to be over and no next one could be formed yet: then its members are told."""
    steady: float = 30.0
    """A generation that lasted so long, or committed a step, was a good one: its end is not one of a series."""
    backoff: float = 1.0
    """Pause after the second generation in a row that broke without a step; it doubles with each further one."""
    backoff_max: float = 30.0


@dataclass(frozen=True, slots=True)
class DecisionState:
    """What must be known beyond the view: since when. Made by :func:`remember` only."""

    base: int = 0
    """Number of the newest generation seen."""
    base_since: float = 0.0
    change_since: float | None = None
    """Since when its set of members is not the wanted one, or it is not intact."""
    enough_since: float | None = None
    """Since when there are ready outsiders (with no generation or an empty one: enough of them)."""
    counted: int = 0
    """Number of the last generation whose end was counted in ``breaks``."""
    counted_step: int = 0
    """Steps committed by then."""
    breaks: int = 0
    """Generations in a row that ended unplanned without a committed step."""
    retry_at: float = 0.0
    """Not before this time after such a series."""
    untold_since: float | None = None
    """Since when a generation is over and its members have not been told."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Write ``generation`` if the key's mod_revision is still ``expected_mod_revision`` (0: it does not exist)."""

    generation: Generation
    expected_mod_revision: int


@dataclass(frozen=True, slots=True)
class Condemn:
    """Tell the members of these generations that they cannot go on, since no next one can be formed now."""

    numbers: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing now; decide again when the view changes, or at ``until``."""

    until: float
    what_for: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nothing until the view changes."""

    reason: str
    changes: int = field(default=1, compare=False)
    """So many changes of members' records, at the least, come before there can be anything to do."""


Action = Propose | Condemn | Wait | Nothing


def remember(memory: DecisionState, view: View, now: float, timing: Timing = Timing()) -> DecisionState:
    """``memory`` after ``view`` was seen at ``now``."""
    number = view.generation.number if view.generation else 0
    if number != memory.base:
        memory = replace(memory, base=number, base_since=now, change_since=None)
    changed = bool(not view.intact or view.leavers or view.joiners or view.unready)
    enough = len(view.joiners) >= (1 if view.base_alive else _least(view))
    memory = replace(
        memory,
        change_since=(now if memory.change_since is None else memory.change_since) if changed else None,
        enough_since=(now if memory.enough_since is None else memory.enough_since) if enough else None,
        untold_since=(now if memory.untold_since is None else memory.untold_since) if _untold(view) else None,
    )
    return memory if view.intact else _count_break(memory, view, now, timing)


def _count_break(memory: DecisionState, view: View, now: float, timing: Timing) -> DecisionState:
    """The newest generation has ended unplanned: is it one of a series?"""
    replaced = bool(view.leavers or view.joiners) and not view.lost  # stock torchrun breaks one off to admit a member
    if memory.counted == memory.base or replaced:
        return memory
    good = view.step > memory.counted_step or now - memory.base_since >= timing.steady
    breaks = 1 if good else memory.breaks + 1
    pause = 0.0 if breaks < 2 else min(timing.backoff_max, timing.backoff * 2.0 ** min(breaks - 2, 16))
    return replace(memory, counted=memory.base, counted_step=view.step, breaks=breaks, retry_at=now + pause)


def decide(view: View, memory: DecisionState, now: float, timing: Timing = Timing()) -> Action:
    """The next thing to do for the job. ``memory`` must come from :func:`remember` with this ``view``."""
    if view.leader != view.self_id:
        return Nothing(f"{view.leader or 'no member'} leads")
    action = _next(view, memory, now, timing)
    untold = _untold(view)
    if not untold or isinstance(action, Propose):  # a next generation says itself what it replaces
        return action
    due = _since(memory.untold_since, now) + timing.tell
    if isinstance(action, Wait) and now < due:
        return replace(action, until=min(action.until, due))
    return Condemn(tuple(untold), "; ".join(dict.fromkeys(untold.values())))


def _untold(view: View) -> dict[int, str]:
    return {number: why for number, why in view.condemned.items() if number not in view.told}


def _next(view: View, memory: DecisionState, now: float, timing: Timing) -> Action:
    """The next generation, or why there is none now."""
    if view.target is None:
        return Nothing("there is no target yet")
    if view.ended:
        return Nothing("the job has ended")
    behind = view.generation.number - view.in_force if view.generation and view.in_force is not None else 0
    if behind >= MAX_OUTSTANDING:
        return Nothing(f"generation {view.in_force} is in force, {behind} newer ones wait to be adopted")
    if view.generation is None or not view.base_alive:
        return _first(view, memory, now, timing)
    if view.target.desired == 0:
        return _propose(view, (), view.target.reason or "Suspend")
    last = behind == MAX_OUTSTANDING - 1
    return _planned(view, memory, now, timing, last) if view.intact else _unplanned(view, memory, now, timing, last)


def _first(view: View, memory: DecisionState, now: float, timing: Timing) -> Action:
    """Nothing trains: there is no generation yet, all members were told to stop, or none of them is left."""
    assert view.target is not None
    if view.target.desired == 0:
        return Nothing("no members are wanted")
    if (missing := _least(view) - len(view.joiners)) > 0:
        return Nothing(f"{len(view.joiners)} of at least {_least(view)} members are ready", changes=missing)
    if not view.adopted and now < memory.base_since + timing.adopt:
        return Wait(memory.base_since + timing.adopt, "all members to stop")
    if memory.breaks >= 2 and now < memory.retry_at:
        return Wait(memory.retry_at, f"a pause after {memory.breaks} failures in a row")
    settled = _since(memory.enough_since, now) + timing.settle
    if len(view.joiners) < view.target.desired and now < settled:
        return Wait(settled, f"more members: {len(view.joiners)} of {view.target.desired} are ready")
    return _propose(view, view.joiners, "Start")


def _planned(  # noqa: PLR0911 - one return per rule
    view: View, memory: DecisionState, now: float, timing: Timing, last: bool
) -> Action:
    """The newest generation is whole; is another set of members wanted?"""
    assert view.target is not None and view.generation is not None
    stayers, joiners = _candidates(view, last)
    if not view.leavers and not joiners:
        return Nothing(f"generation {view.generation.number} is as wanted")
    if view.unready:
        # They train. They will be ready when they can be in another generation; until then this one stays.
        return Nothing(f"{_names(view.unready)} must stop training first")
    if view.leavers:
        return _propose_or_stop(view, stayers + joiners, _why(view, joiners))
    if not view.adopted and now < memory.base_since + timing.adopt:
        return Wait(memory.base_since + timing.adopt, f"generation {view.generation.number} to be adopted")
    settled = _since(memory.enough_since, now) + timing.settle
    short = len(stayers + joiners) < view.target.desired
    if short and view.warming and now < settled:
        return Wait(settled, f"{_names(view.warming)} to be ready")
    if memory.breaks >= 2 and now < memory.retry_at:
        return Wait(memory.retry_at, f"a pause after {memory.breaks} failures in a row")
    return _propose(view, stayers + joiners, "Grow")


def _unplanned(view: View, memory: DecisionState, now: float, timing: Timing, last: bool) -> Action:
    """The newest generation lost a member or its collectives failed."""
    if view.unready:
        bound = _since(memory.change_since, now) + timing.reenter
        if now < bound:
            return Wait(bound, f"{_names(view.unready)} to be ready again")
    if view.unsure and not view.lost:
        bound = _since(memory.change_since, now) + timing.probe
        if now < bound:
            return Wait(bound, f"answers to probes of {', '.join(sorted(view.unsure))}")
    if not (view.lost or view.joiners or view.leavers):
        bound = _since(memory.change_since, now) + timing.doubt
        if now < bound:
            return Wait(bound, "a loss to show")
    stayers, joiners = _candidates(view, last)
    if memory.breaks >= 2 and now < memory.retry_at:
        # After a loss the survivors continue at once; new members enter when the series of failures is over.
        if not view.lost or len(stayers) < _least(view) <= len(stayers + joiners):
            return Wait(memory.retry_at, f"a pause after {memory.breaks} failures in a row")
        joiners = ()
    return _propose_or_stop(view, stayers + joiners, _why(view, joiners))


def _candidates(view: View, last: bool) -> tuple[tuple[RegisteredMember, ...], tuple[RegisteredMember, ...]]:
    """Stayers and joiners of the next generation.

    The last proposal that fits the slots has only members that train: if one of those is lost, the generation in force
    breaks and no member is bound to it any more, so a dead joiner can never block the last slot.
    """
    if not last:
        return view.stayers, view.joiners
    in_force = view.in_force or 0
    return tuple(m for m in view.stayers if view.adopted_by(m) >= in_force), ()


def _propose_or_stop(view: View, chosen: tuple[RegisteredMember, ...], reason: str) -> Action:
    """The chosen members; if they are too few and a member waits to leave, all stop."""
    if len(chosen) >= _least(view):
        return _propose(view, chosen, reason)
    if view.leavers:
        return _propose(view, (), "Stop")
    return Nothing(f"{len(chosen)} of at least {_least(view)} members are left")


def _propose(view: View, chosen: tuple[RegisteredMember, ...], reason: str) -> Propose:
    members: list[GenerationMember] = []
    offset = 0
    for m in chosen:
        r = m.record
        members.append(
            GenerationMember(
                id=r.id, worker=r.worker, address=r.address, store_port=r.store_port, slots=r.slots, rank_offset=offset
            )
        )
        offset += r.slots
    known = [max(m.record.generation, m.record.broken) for m in view.members]
    number = 1 + max([view.generation.number if view.generation else 0, view.highest, *known])
    generation = Generation(
        number=number,
        members=tuple(members),
        reason=reason,
        leader=view.self_id,
        step=view.step,
        ended=tuple(view.condemned),
        why="; ".join(dict.fromkeys(view.condemned.values())),
    )
    return Propose(generation, view.generation_mod_revision)


def _why(view: View, joiners: tuple[RegisteredMember, ...]) -> str:
    if view.lost:
        return "Lost"
    if view.leavers:
        told = view.target is not None and any(m.record.worker in view.target.leaving for m in view.leavers)
        own = "Replace" if joiners else "Drain"
        return (view.target.reason or own) if told and view.target else own
    return "Grow" if joiners else "Broken"


def _least(view: View) -> int:
    return view.target.min if view.target else 1


def _since(since: float | None, now: float) -> float:
    return now if since is None else since


def _names(members: tuple[RegisteredMember, ...]) -> str:
    return ", ".join(m.record.worker for m in members)
