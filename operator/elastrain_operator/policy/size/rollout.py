"""Rolls a changed template out to running workers: one after the other, by planned rescales, never below the minimum.

A pod's label names the version of its template. While workers of another version run, a few pods more than desired may
exist; one that is ready to join replaces an old worker, which is asked to leave as in any shrink. If the cluster has no
room for an additional pod, the old worker leaves first. If a new worker does not start, or its script fails, no other
worker is asked to leave: the old workers continue to train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import UNSCHEDULABLE, Cause, ConditionUpdate, Coordination, Pod, Refusal, RefusalKind
from elastrain_operator.policy.losses import starting
from elastrain_operator.policy.losses.causes import judge
from elastrain_operator.policy.size import leavers
from elastrain_resource.job import ConditionType

ROOM_PATIENCE = 30.0
"""Seconds for which a new pod may be unschedulable before an old worker leaves for it: preemption and descheduling take
time, and the removal of an old worker cannot be undone."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Actions for workers of another version of the template; the default: no such workers."""

    old: tuple[Pod, ...] = ()
    """Workers that are still of another version."""
    extra: int = 0
    """Pods beyond the desired number that may exist."""
    create: int = 0
    """Pods beyond the desired number to create now."""
    leave: tuple[Pod, ...] = ()
    """Workers to ask to leave now."""
    stopped: str = ""
    """Why no other worker is replaced, with the name of the blocking worker; empty: the roll-out continues."""
    until: datetime | None = None
    """When the roll-out needs another pass even without a change."""
    coming: tuple[str, ...] = ()
    """New workers (names) that do not train yet: the roll-out waits for them."""


@dataclass(frozen=True, slots=True)
class RolloutInput:
    """The input of a roll-out: which workers there are, and how many may be replaced."""

    workers: Sequence[Pod]
    """Pods that count as workers; those that were asked to leave do not."""
    pods: Sequence[Pod]
    """All pods of the job, ended ones included."""
    version: str
    """Version of the current template."""
    desired: int
    minimum: int
    at_a_time: int
    """``spec.maxUnavailable``; 0: running workers are never replaced."""
    leaving: int
    """Workers that were asked to leave and still exist."""
    refusal: Refusal | None
    """The API server's refusal of pods of the current spec."""
    members: Coordination | None
    """None: membership is unknown."""
    share: Share | None
    """The allocator's answer: which workers leave first."""
    now: datetime
    spares: int = 0
    """Warm spares beyond ``desired``: they are replaced first, then each replaces an old worker."""


def rollout(given: RolloutInput) -> Rollout:
    """What to do now. Pods without a version (made by an older operator) count as up to date."""
    old = tuple(p for p in given.workers if p.template and p.template != given.version)
    if not old or given.at_a_time == 0 or given.desired == 0 or given.members is None:
        return Rollout(old)
    former = {p.name for p in old}
    new = [p for p in given.workers if p.name not in former]
    coming = [p for p in new if not given.members.trains(p.name)]
    extra = min(len(coming), given.at_a_time)
    if surplus := _surplus(given, old, given.members):
        return Rollout(old, extra, leave=surplus)
    if stopped := _stopped(given, new, given.members):
        return Rollout(old, extra, stopped=stopped)
    made = _renew_spares(given, old, coming, given.members) or _go_on(given, old, coming, given.members)
    if given.refusal and not _no_quota(given):  # it is retried with increasing delays
        text = f"{given.refusal.kind.reason}: {given.refusal.message}"
        return replace(made, leave=(), stopped=text)
    return made


def _renew_spares(
    given: RolloutInput, old: tuple[Pod, ...], coming: Sequence[Pod], members: Coordination
) -> Rollout | None:
    """Old spares are replaced before training workers: this delays no step, and their successors test the new template.
    None: there are no old spares."""
    training = sum(members.trains(p.name) for p in given.workers)
    idle = [p for p in old if not members.trains(p.name)]
    if not given.spares or not idle or training < given.desired:
        return None
    # An unschedulable pod gets the room of the next old spare; all others are waited for.
    warming = [p for p in coming if not _is_ready(p, members) and not (p.trouble and p.trouble.reason == UNSCHEDULABLE)]
    leave = _first_to_go(given, idle, given.at_a_time - given.leaving - len(warming))
    return Rollout(old, min(len(coming), given.at_a_time), leave=leave, coming=tuple(p.name for p in coming))


def _go_on(given: RolloutInput, old: tuple[Pod, ...], coming: Sequence[Pod], members: Coordination) -> Rollout:
    batch, surplus = given.at_a_time, len(given.workers) - given.desired
    free = max(batch - given.leaving, 0)
    takers = min(sum(_is_ready(p, members) for p in coming), max(surplus, 0))
    room = _room(given, coming, members)
    leave = _first_to_go(given, old, min(free, max(takers, room.made)))
    beyond = surplus - given.spares
    create = max(min(free - len(coming) - len(leave), batch - beyond), 0) if beyond >= 0 else 0
    names = tuple(p.name for p in coming)
    return Rollout(old, min(len(coming), batch), create, leave, room.none, room.until, names)


@dataclass(frozen=True, slots=True)
class _MadeRoom:
    made: int
    """Old workers that leave because the cluster or the quota has no room for an additional pod."""
    none: str
    """Why no room can be made; empty: not needed, or possible."""
    until: datetime | None
    """When waiting for room ends."""


def _room(given: RolloutInput, coming: Sequence[Pod], members: Coordination) -> _MadeRoom:
    stuck = [p for p in coming if p.trouble and p.trouble.reason == UNSCHEDULABLE and not p.started]
    ripe = [p for p in stuck if given.now >= _patience(p)]
    wanted = len(ripe) if len(given.workers) > given.desired else 0
    if _no_quota(given) and not coming and len(given.workers) >= given.desired:
        wanted = 1
    training = sum(members.trains(p.name) for p in given.workers)
    missing = max(given.desired - training, 0)
    made = max(min(wanted, given.at_a_time - missing, training - given.minimum), 0)
    none = ""
    if wanted and training <= given.minimum:
        none = f"there is no room for another worker, and minReplicas ({given.minimum}) permits no worker to leave"
    return _MadeRoom(made, none, min((_patience(p) for p in stuck if p not in ripe), default=None))


def _no_quota(given: RolloutInput) -> bool:
    return given.refusal is not None and given.refusal.kind is RefusalKind.QUOTA_EXCEEDED


def _patience(pod: Pod) -> datetime:
    return pod.seen + timedelta(seconds=ROOM_PATIENCE)


def _surplus(given: RolloutInput, old: Sequence[Pod], members: Coordination) -> tuple[Pod, ...]:
    """Old workers that may leave without a replacement: those that never ran, and training ones beyond the desired
    number. (A surplus of workers that run and do not train is left to the ordinary shrink.)"""
    idle = tuple(p for p in old if not p.started)
    training = {p.name for p in given.workers if members.trains(p.name)}
    busy = [p for p in old if p.name in training]
    return (*idle, *_first_to_go(given, busy, len(training) - given.desired))


def _first_to_go(given: RolloutInput, old: Sequence[Pod], number: int) -> tuple[Pod, ...]:
    return leavers.ranked(old, given.members, given.share)[: max(number, 0)]


def _is_ready(pod: Pod, members: Coordination) -> bool:
    return pod.started and members.is_ready(pod.name)


def _stopped(given: RolloutInput, new: Sequence[Pod], members: Coordination) -> str:
    """Why the roll-out stops: a new worker does not start, or its script has failed before any worker of this version
    has trained."""
    for pod in new:
        trouble = pod.trouble
        ripe = trouble and (given.now - pod.seen).total_seconds() >= trouble.patience
        if trouble and ripe and trouble.reason not in (UNSCHEDULABLE, starting.QUEUED):
            return f"{trouble.reason}: {trouble.message}"
    if any(members.trains(p.name) for p in new):
        return ""
    failed = [loss for p in given.pods if p.template == given.version and p.ending and (loss := judge(p))]
    by_script = [loss for loss in failed if loss.cause is Cause.USER]
    return f"{by_script[-1].reason}: {by_script[-1].message}" if by_script else ""


def claim(made: Rollout, total: int, was_reported: bool, at_a_time: int) -> tuple[ConditionUpdate, ...]:
    """The condition UpToDate; none for a job whose template has never changed while it ran."""
    kind, done = ConditionType.UP_TO_DATE, f"{total - len(made.old)} of {total} workers use the present template"
    if not made.old:
        return (ConditionUpdate(kind, "True", "AllUpToDate", done),) if was_reported else ()
    if at_a_time == 0:
        text = f"{done}; maxUnavailable is 0: the others are replaced only when they are lost"
        return (ConditionUpdate(kind, "False", "NotReplaced", text),)
    if made.stopped:
        text = f"{done}; no other worker is replaced: {made.stopped}. Change spec.template, or set it back"
        return (ConditionUpdate(kind, "False", "RolloutStopped", text),)
    waits = f"; waiting for {', '.join(made.coming)} to train" if made.coming else ""
    return (ConditionUpdate(kind, "False", "RollingOut", f"{done}, {at_a_time} replaced at a time{waits}"),)
