"""What each event may cost elastrain at most. Pure; ``docs/benchmarks.md`` says why these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rescale_harness.events import Event, kind
from rescale_harness.results import EventSummary, GoalResult, Spread, SystemResult, Undisturbed


@dataclass(frozen=True, slots=True)
class Basis:
    """What the formulas are evaluated with: the same system, undisturbed, in the same report. Seconds."""

    step: float
    """Median undisturbed step at the larger one of the event's two sizes."""
    longest: float
    """The longest undisturbed step there."""
    lease_ttl: float


@dataclass(frozen=True, slots=True)
class Goal:
    """``figure`` is at most ``steps`` undisturbed steps + ``leases`` lease TTLs + ``constant``."""

    figure: Literal["stall", "pause", "changes"]
    constant: float = 0.0
    steps: float = 0.0
    leases: float = 0.0
    or_longest: bool = False
    """The longest undisturbed step is allowed, too."""

    @property
    def words(self) -> str:
        terms = [
            *([f"{_count(self.steps)} step{'s' if self.steps > 1 else ''}"] if self.steps else []),
            *([f"{_count(self.leases)} lease TTL"] if self.leases else []),
            *([f"{self.constant:g}{'' if self.figure == 'changes' else ' s'}"] if self.constant else []),
        ]
        return " + ".join(terms) + (", or the longest undisturbed step" if self.or_longest else "")

    def bound(self, basis: Basis) -> float:
        bound = self.constant + self.steps * basis.step + self.leases * basis.lease_ttl
        return max(bound, basis.longest) if self.or_longest else bound


def _count(number: float) -> str:
    return {1: "one", 2: "two"}.get(int(number), f"{number:g}") if number == int(number) else f"{number:g}"


_JOIN = Goal("stall", steps=1, constant=0.1)
_LEAVE = Goal("stall", steps=1, constant=0.05)
_LOSS = Goal("stall", steps=2, constant=0.1)
_NOTHING = Goal("stall", steps=1, constant=0.05, or_longest=True)
_BACK = Goal("pause", constant=1.0)
GOALS: Mapping[Event, tuple[Goal, ...]] = {
    Event.GROW: (_JOIN, Goal("pause", constant=4.0)),
    Event.GROW_MANY: (Goal("changes", constant=1),),
    Event.GROW_SPARE: (_JOIN, Goal("pause", constant=0.5)),
    Event.KILL_RANK: (_LOSS, _BACK),
    Event.TERM: (_LEAVE,),
    Event.KILL_NODE: (_LOSS,),
    Event.KILL_FIRST: (_LOSS,),
    Event.KILL_SPARE: (_LOSS, _BACK),
    Event.SILENT: (Goal("stall", leases=1, constant=1.0),),
    Event.WAKE: (_JOIN,),
    Event.ETCD: (_NOTHING,),
    Event.DIES_IMPORTING: (_NOTHING,),
    Event.DIES_WARMING: (_NOTHING,),
    Event.DIES_CONNECTING: (_NOTHING,),
}


def with_goals(system: SystemResult, lease_ttl: float) -> SystemResult:
    """The same with every event's goals judged; ``lease_ttl``: seconds, of the scenarios with a short lease."""
    events = [e.model_copy(update={"goals": judge(e, system.undisturbed, lease_ttl)}) for e in system.events]
    return system.model_copy(update={"events": tuple(events)})


def judge(event: EventSummary, undisturbed: Sequence[Undisturbed], lease_ttl: float) -> tuple[GoalResult, ...]:
    """Empty where no undisturbed step was seen at either size."""
    sized = {u.size: u for u in undisturbed}
    known = [sized[s] for s in (event.from_size, event.to_size) if s in sized]
    if not known:
        return ()
    base = max(known, key=lambda u: u.size)
    basis = Basis(base.median, base.longest, lease_ttl)
    return tuple(_result(goal, basis, event) for goal in GOALS[kind(event.label)])


def _result(goal: Goal, basis: Basis, event: EventSummary) -> GoalResult:
    measured: Spread | None = getattr(event, goal.figure)
    bound = goal.bound(basis)
    every = measured is not None and event.recovered == event.runs
    return GoalResult(
        figure=goal.figure,
        words=goal.words,
        bound=bound,
        met_by_median=measured is not None and measured.median <= bound,
        met_by_all=every and measured is not None and measured.max <= bound,
    )
