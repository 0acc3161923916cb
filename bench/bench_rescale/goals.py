"""What each event may cost elastrain at most. Pure; ``docs/benchmarks.md`` explains the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench_harness.stats import Spread
from bench_rescale.events import Event, kind
from bench_rescale.results import EventResult, Undisturbed


@dataclass(frozen=True, slots=True)
class Goal:
    """``figure`` is at most ``steps`` undisturbed steps + ``leases`` lease TTLs + ``constant`` seconds."""

    figure: Literal["stall", "time_to_size"]
    constant: float
    steps: int = 0
    leases: int = 0
    or_longest: bool = False
    """The longest undisturbed step is allowed, too."""

    @property
    def words(self) -> str:
        steps = {0: "", 1: "one step + ", 2: "two steps + "}[self.steps]
        lease = "one lease TTL + " if self.leases else ""
        return f"{steps}{lease}{self.constant:g} s" + (", or the longest undisturbed step" if self.or_longest else "")


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal with its bound in seconds, and how it was kept."""

    goal: Goal
    bound: float
    measured: Spread | None
    kept: Literal["yes", "by the median", "no"]


_JOIN = Goal("stall", 0.1, steps=1)
_LOSS = Goal("stall", 0.1, steps=2)
_BACK = Goal("time_to_size", 1.0)
GOALS: Mapping[Event, tuple[Goal, ...]] = {
    Event.GROW: (_JOIN, Goal("time_to_size", 4.0)),
    Event.GROW_MANY: (),
    Event.GROW_SPARE: (_JOIN, Goal("time_to_size", 0.5)),
    Event.JOIN_ONE: (_JOIN, Goal("time_to_size", 0.5)),
    Event.KILL_RANK: (_LOSS, _BACK),
    Event.TERM: (Goal("stall", 0.05, steps=1),),
    Event.KILL_NODE: (_LOSS,),
    Event.KILL_FIRST: (_LOSS,),
    Event.KILL_SPARE: (_LOSS, _BACK),
    Event.SILENT: (Goal("stall", 1.0, leases=1),),
    Event.WAKE: (_JOIN,),
    Event.TRAIN: (),
    Event.ETCD: (Goal("stall", 0.05, steps=1, or_longest=True),),
    Event.CYCLES: (),
}


def judge(events: Sequence[EventResult], undisturbed: Sequence[Undisturbed], lease_ttl: float) -> list[Judged]:
    """``events``: one event over all runs; ``undisturbed``: of the same system. *One step* is the median undisturbed
    step at the larger one of the event's two sizes. Empty where no such step was seen."""
    sized = {u.size: u for u in undisturbed}
    known = [sized[s] for s in (events[0].from_size, events[0].to_size) if s in sized]
    if not known:
        return []
    base = max(known, key=lambda u: u.size)
    return [_judge(goal, base, lease_ttl, events) for goal in GOALS[kind(events[0].label)]]


def _judge(goal: Goal, base: Undisturbed, lease_ttl: float, events: Sequence[EventResult]) -> Judged:
    bound = goal.constant + goal.steps * base.median + goal.leases * lease_ttl
    bound = max(bound, base.longest) if goal.or_longest else bound
    measured = Spread.of(getattr(e, goal.figure) for e in events)
    if measured is None or measured.median > bound:
        return Judged(goal, bound, measured, "no")
    every = all(e.recovered for e in events) and measured.max <= bound
    return Judged(goal, bound, measured, "yes" if every else "by the median")
