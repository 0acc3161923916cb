"""Decides on the next generation. Pure: the same view, memory and time always give the same action.

The leader runs :func:`remember` and :func:`decide` on every change; :mod:`elastrain.rendezvous.driver` executes the
result. A new leader starts with an empty memory, so waits restart. Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from elastrain.api.records import Generation, GenerationMember
from elastrain.jobstate import RegisteredMember
from elastrain.rendezvous import groups
from elastrain.rendezvous.view import View, is_ready

MAX_OUTSTANDING = 6
"""Most proposals newer than the oldest generation in force. With each step, ranks carry one readiness flag per proposal
in 8 slots, by number modulo 8: the generation in force, these, and one free slot."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The leader's waits, in seconds."""

    settle: float = 3.0
    """For members that are still warming, so that several joiners cause one change; at the start also for more members
    than the least number."""
    adopt: float = 60.0
    """For the newest generation to be adopted before members are added to it."""
    reenter: float = 45.0
    """For live members of a broken generation that are not ready (stock torchrun first stops its workers, for up to
    30 s)."""
    doubt: float = 0.1
    """After failed collectives without a known loss: a killed rank's peers see its sockets close a few milliseconds
    before its agent has reaped it and reported the loss. The same generation, formed again, would break at once."""
    holder: float = 5.0
    """For a member with the training state to return, if all of them were lost: the others would begin without it."""
    restart: float = 600.0
    """For a member that has kept the training state to be ready again, if no other one holds it."""
    notify: float = 0.25
    """From the observed end of a generation until its members are notified, if no next one can be formed."""
    steady: float = 30.0
    """A generation that lasted this long, or committed a step, was healthy: its end does not count as one of a
    series."""
    backoff: float = 1.0
    """Pause after the second consecutive generation that broke without a step; it doubles with each further one."""
    backoff_max: float = 30.0


@dataclass(frozen=True, slots=True)
class DecisionState:
    """The times that the view does not contain. Made by :func:`remember` only."""

    base: int = 0
    """Number of the newest generation seen."""
    base_since: float = 0.0
    change_since: float | None = None
    """Since when its set of members differs from the desired one, or it is not intact."""
    enough_since: float | None = None
    """Since when outsiders are ready (without a generation or with an empty one: enough of them)."""
    counted: int = 0
    """Number of the last generation whose end was counted in ``breaks``."""
    counted_step: int = 0
    """Committed steps at that time."""
    breaks: int = 0
    """Consecutive generations that ended unplanned without a committed step."""
    retry_at: float = 0.0
    """Earliest time of the next generation after such a series."""
    entries: int = 0
    """Consecutive generations that ended before members without the newest state had received it."""
    admit_at: float = 0.0
    """Earliest time at which such members are admitted again, after a series of these; the others go on."""
    ahead_since: float | None = None
    """Since when a member is in a generation that etcd has lost."""
    unnotified_since: float | None = None
    """Since when a generation is over whose members have not been notified."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Write ``generation`` if the key's mod_revision is still ``expected_mod_revision`` (0: it does not exist)."""

    generation: Generation
    expected_mod_revision: int


@dataclass(frozen=True, slots=True)
class Condemn:
    """Notify the members of these generations that they are over, since no next one can be formed now."""

    numbers: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """No action now; decide again when the view changes, or at ``until``."""

    until: float
    what_for: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """No action until the view changes."""

    reason: str
    changes: int = field(default=1, compare=False)
    """Least number of changes of members' records before an action is possible."""


Action = Propose | Condemn | Wait | Nothing


def remember(memory: DecisionState, view: View, now: float, timing: Timing = Timing()) -> DecisionState:
    """``memory`` after ``view`` was seen at ``now``."""
    number = view.generation.number if view.generation else 0
    if number != memory.base:
        memory = replace(memory, base=number, base_since=now, change_since=None)
    changed = bool(not view.intact or view.leavers or view.joiners or view.unready)
    enough = len(view.joiners) >= (1 if view.base_alive else _least(view))
    unnotified = bool(_unnotified(view))
    ahead = bool(view.ahead)
    times = (memory.change_since, memory.enough_since, memory.unnotified_since, memory.ahead_since)
    if (changed, enough, unnotified, ahead) != tuple(since is not None for since in times):
        memory = replace(
            memory,
            change_since=_since(memory.change_since, now) if changed else None,
            enough_since=_since(memory.enough_since, now) if enough else None,
            unnotified_since=_since(memory.unnotified_since, now) if unnotified else None,
            ahead_since=_since(memory.ahead_since, now) if ahead else None,
        )
    return memory if view.intact else _count_break(memory, view, now, timing)


def _count_break(memory: DecisionState, view: View, now: float, timing: Timing) -> DecisionState:
    """Count the unplanned end of the newest generation as one of a series, or start a new series."""
    replaced = bool(view.leavers or view.joiners) and not view.lost  # stock torchrun ends one to admit a member
    if memory.counted == memory.base or replaced:
        return memory
    good = view.step > memory.counted_step or now - memory.base_since >= timing.steady
    breaks = 1 if good else memory.breaks + 1
    entries = memory.entries + 1 if view.newcomers else 0
    return replace(
        memory,
        counted=memory.base,
        counted_step=view.step,
        breaks=breaks,
        retry_at=now + _pause(breaks, timing),
        entries=entries,
        admit_at=now + _pause(entries, timing) if view.newcomers else memory.admit_at,
    )


def _pause(series: int, timing: Timing) -> float:
    """Seconds after the last failure of a ``series``: none after the first one, then twice as long each time."""
    return 0.0 if series < 2 else min(timing.backoff_max, timing.backoff * 2.0 ** min(series - 2, 16))


def decide(view: View, memory: DecisionState, now: float, timing: Timing = Timing()) -> Action:
    """The next action for the job. ``memory`` must come from :func:`remember` with this ``view``."""
    if view.leader != view.self_id:
        return Nothing(f"{view.leader or 'no member'} leads")
    action = _next(view, memory, now, timing)
    unnotified = _unnotified(view)
    if not unnotified or isinstance(action, Propose):  # a new generation names the ones that it replaces
        return action
    due = _since(memory.unnotified_since, now) + timing.notify
    if isinstance(action, Wait) and now < due:
        return replace(action, until=min(action.until, due))
    return Condemn(tuple(unnotified), "; ".join(dict.fromkeys(unnotified.values())))


def _unnotified(view: View) -> dict[int, str]:
    return {number: why for number, why in view.condemned.items() if number not in view.notified}


def _next(  # noqa: PLR0911 - one return per rule
    view: View, memory: DecisionState, now: float, timing: Timing
) -> Action:
    """The next generation, or why none is formed now."""
    if view.target is None:
        return Nothing("there is no target yet")
    if view.ended:
        return Nothing("the job has ended")
    if view.ahead and now < (bound := _since(memory.ahead_since, now) + timing.reenter):
        return Wait(bound, f"{_names(view.ahead)} to write the generation again that etcd has lost")
    behind = view.generation.number - view.in_force if view.generation and view.in_force is not None else 0
    if behind >= MAX_OUTSTANDING:
        return Nothing(f"generation {view.in_force} is in force, {behind} newer ones are not adopted yet")
    if view.generation is None or not view.base_alive:
        return _first(view, memory, now, timing)
    if view.target.desired == 0:
        return _propose(view, (), view.target.reason or "Suspend")
    last = behind == MAX_OUTSTANDING - 1
    return _planned(view, memory, now, timing, last) if view.intact else _unplanned(view, memory, now, timing, last)


def _first(  # noqa: PLR0911 - one return per rule
    view: View, memory: DecisionState, now: float, timing: Timing
) -> Action:
    """No generation trains: none exists yet, all members were asked to stop, or none of them is left."""
    assert view.target is not None
    if view.target.desired == 0:
        return Nothing("no members are desired")
    if len(view.joiners) < _least(view):
        missing = _least(view) - sum(map(is_ready, view.outsiders))
        return Nothing(_too_few(view.joiners, view, "ready"), changes=max(missing, 1))
    if not view.adopted and now < memory.base_since + timing.adopt:
        return Wait(memory.base_since + timing.adopt, "all members to stop")
    if (wait := _for_state(view, memory, now, timing)) is not None:
        return wait
    if memory.breaks >= 2 and now < memory.retry_at:
        return Wait(memory.retry_at, f"a pause after {memory.breaks} failures in a row")
    settled = _since(memory.enough_since, now) + timing.settle
    if len(view.joiners) < view.target.desired and now < settled:
        return Wait(settled, f"more members: {len(view.joiners)} of {view.target.desired} are ready")
    return _propose(view, view.joiners, "Start")


def _planned(  # noqa: PLR0911 - one return per rule
    view: View, memory: DecisionState, now: float, timing: Timing, last: bool
) -> Action:
    """The newest generation is intact: change its members if the desired set differs."""
    assert view.target is not None and view.generation is not None
    stayers, joiners = _candidates(view, last)
    if not view.leavers and not joiners:
        if view.mute:
            return Nothing(f"{_names(view.mute)} cannot give the training state to new members")
        return Nothing(f"generation {view.generation.number} is the desired one")
    if view.unready:
        # They train, and become ready when they can enter another generation; until then this one stays.
        return Nothing(f"{_names(view.unready)} must stop training first")
    if view.keepers and (learners := tuple(m for m in view.stayers if m not in view.keepers)):
        return Nothing(f"{_names(learners)} must receive the state that only {_names(view.keepers)} holds")
    if view.leavers:
        return _propose_or_stop(view, stayers, joiners)
    if not view.adopted and now < memory.base_since + timing.adopt:
        return Wait(memory.base_since + timing.adopt, f"generation {view.generation.number} to be adopted")
    settled = _since(memory.enough_since, now) + timing.settle
    short = len(stayers + joiners) < view.target.desired
    if short and view.warming and now < settled:
        return Wait(settled, f"{_names(view.warming)} to be ready")
    if memory.breaks >= 2 and now < memory.retry_at:
        return Wait(memory.retry_at, f"a pause after {memory.breaks} failures in a row")
    if now < memory.admit_at:
        return Wait(memory.admit_at, f"a pause after {memory.entries} failures in a row of new members to enter")
    return _propose(view, view.whole(stayers + joiners), "Grow")


def _unplanned(view: View, memory: DecisionState, now: float, timing: Timing, last: bool) -> Action:
    """The newest generation lost a member or its collectives failed."""
    if view.unready:
        bound = _since(memory.change_since, now) + timing.reenter
        if now < bound:
            return Wait(bound, f"{_names(view.unready)} to be ready again")
    if not (view.lost or view.joiners or view.leavers):
        bound = _since(memory.change_since, now) + timing.doubt
        if now < bound:
            return Wait(bound, "a loss to become known")
    if (wait := _for_state(view, memory, now, timing)) is not None:
        return wait
    stayers, joiners = _candidates(view, last)
    if now < memory.admit_at:
        # Those that hold the state do not wait for new members that break each entry.
        holders = tuple(view.whole(m for m in g if view.holds_newest(m)) for g in (stayers, joiners))
        if len(holders[0] + holders[1]) >= _least(view):
            stayers, joiners = holders
    if memory.breaks >= 2 and now < memory.retry_at:
        # After a loss the survivors continue at once; new members enter when the series of failures is over.
        others = view.lost or any(is_ready(m) and m not in stayers for m in view.base_alive)
        if not others or len(view.whole(stayers)) < _least(view) <= len(stayers + joiners):
            return Wait(memory.retry_at, f"a pause after {memory.breaks} failures in a row")
        joiners = tuple(m for m in joiners if view.holds_newest(m))
    return _propose_or_stop(view, stayers, joiners)


def _for_state(view: View, memory: DecisionState, now: float, timing: Timing) -> Wait | Nothing | None:
    """All members that hold the training state were lost unplanned: wait for one of them, bounded. Or a live member
    that may hold it cannot be read, and no other one holds it: nothing is decided until it can be, or is gone."""
    if view.generation and view.unread and not any(map(view.holds, (*view.stayers, *view.joiners))):
        return Nothing(f"{_names(view.unread)} may hold the training state, with a phase that this version cannot read")
    bound = _since(memory.change_since, now) + timing.restart
    if view.returning and now < bound:
        return Wait(bound, f"the training state, which {_names(view.returning)} kept, to be ready again")
    bound = _since(memory.change_since, now) + timing.holder
    if not view.lost or not view.may_return or now >= bound:
        return None
    return Wait(bound, f"the training state: {', '.join(view.may_return)} may return with it")


def _candidates(view: View, last: bool) -> tuple[tuple[RegisteredMember, ...], tuple[RegisteredMember, ...]]:
    """Stayers and joiners of the next generation.

    The last proposal that fits the slots contains only members that train: if one of them is lost, the generation in
    force breaks and no longer binds any member, so a dead joiner can never block the last slot.
    """
    if not last:
        return view.stayers, view.joiners
    in_force = view.in_force or 0
    return view.whole(m for m in view.stayers if view.adopted_by(m) >= in_force), ()


def _propose_or_stop(
    view: View, stayers: tuple[RegisteredMember, ...], joiners: tuple[RegisteredMember, ...]
) -> Action:
    """The chosen members, and those leavers that have to give them the state. If they are too few, all stop.

    All stop also if too few of them hold the whole state and none can give: the leavers save what they have before the
    joiners begin, which would otherwise train beside them.
    """
    assert view.target is not None
    if view.one_copy:  # joiners, which hold nothing, leave room for its keepers
        joiners = joiners[: max(0, view.target.max - len(stayers) - len(view.keepers))]
    chosen = view.whole(stayers + joiners)
    room = max(0, view.target.max - len(chosen))
    # Not those of a group that is chosen with another worker in the leaver's place.
    keepers = groups.whole(groups.whole(m for m in view.keepers if m not in chosen)[:room])
    held = groups.cover((*stayers, *filter(view.holds_newest, joiners)))
    if chosen and len(chosen) >= _least(view) and (held or keepers or not view.leavers):
        return _propose(view, keepers + chosen, _why(view, joiners))
    if view.leavers:
        return _propose(view, (), "Stop")
    return Nothing(_too_few(chosen, view, "left"))


def _propose(view: View, chosen: tuple[RegisteredMember, ...], reason: str) -> Propose:
    members: list[GenerationMember] = []
    offset = 0
    for m in chosen:
        r = m.record
        members.append(
            GenerationMember(
                id=r.id,
                worker=r.worker,
                address=r.address,
                store_port=r.store_port,
                slots=r.slots,
                rank_offset=offset,
                part=r.part,
            )
        )
        offset += r.slots
    over = view.condemned | dict.fromkeys((m.record.generation for m in view.ahead), "etcd has lost its generation")
    known = [max(m.record.generation, m.record.broken) for m in view.members]
    number = 1 + max([view.generation.number if view.generation else 0, view.highest, *known])
    generation = Generation(
        number=number,
        members=tuple(members),
        reason=reason,
        leader=view.self_id,
        step=view.step,
        ended=tuple(over),
        why="; ".join(dict.fromkeys(over.values())),
    )
    return Propose(generation, view.generation_mod_revision)


def _why(view: View, joiners: tuple[RegisteredMember, ...]) -> str:
    if view.lost:
        return "Lost"
    if view.leavers:
        requested = view.target is not None and any(m.record.worker in view.target.leaving for m in view.leavers)
        own = "Replace" if joiners else "Drain"
        return (view.target.reason or own) if requested and view.target else own
    return "Grow" if joiners else "Broken"


def _too_few(members: groups.Group, view: View, are: str) -> str:
    ids = {m.id for m in members}  # thousands of records are not compared with each other
    waits = [m for m in view.alive.values() if is_ready(m) and not view.is_leaving(m) and m.id not in ids]
    apart = (
        f"; {_names(tuple(waits))} wait for other workers of their groups"
        if any(m.record.group_size > 1 for m in waits)
        else ""
    )
    return f"{len(members)} of at least {_least(view)} members are {are}{apart}"


def _least(view: View) -> int:
    return view.target.min if view.target else 1


def _since(since: float | None, now: float) -> float:
    return now if since is None else since


def _names(members: tuple[RegisteredMember, ...]) -> str:
    return ", ".join(m.record.worker for m in members)
