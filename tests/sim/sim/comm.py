"""The connections of one generation's ranks, as far as the commit rule needs them.

Nothing is had by one rank unless all have given their part, and each has it at a moment of its own, if it has not given
up by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastrain.api.records import Generation

if TYPE_CHECKING:
    from sim.ranks import Rank
    from sim.world import World

MEETING_TIMEOUT = 60.0


@dataclass
class Collective:
    """One sum: what each rank gave, and whom the result goes to."""

    given: dict[int, Any] = field(default_factory=dict)
    take: dict[int, Callable[[dict[int, Any]], None]] = field(default_factory=dict)
    complete: bool = False


class Comm:
    """Of one generation. Ranks are global numbers."""

    def __init__(self, world: World, generation: Generation) -> None:
        self.world = world
        self.generation = generation
        self.size = generation.world_size
        self.arrived: dict[int, Rank] = {}
        self.met = False
        self.over: dict[int, str] = {}
        """Ranks that have given up, and why."""
        self.members: dict[int, Rank] = {}
        self.deaf: set[int] = set()
        """Ranks that the next results do not reach: their connections are reset instead."""
        self._collectives: dict[Any, Collective] = {}

    # ---- meeting -----------------------------------------------------------------------------------------------------
    def arrive(self, number: int, rank: Rank) -> None:
        """Rank ``number`` waits at the meeting point; all go on when the last one has come."""
        self.arrived[number] = rank
        self._meet()

    def _meet(self) -> None:
        if self.met or len(self.arrived) < self.size:
            return
        if not all(r.process.runs for r in self.arrived.values()) or not self._whole():
            self.world.clock.after(1.0, self._meet)
            return
        self.met = True
        self.members = dict(self.arrived)
        for rank in self.members.values():
            rank.process.after(0.003 + 0.05 * self.world.rng.random(), rank.connected, self)

    def _whole(self) -> bool:
        """Whether all can reach each other."""
        places = sorted({r.process.place for r in self.arrived.values()})
        cut = self.world.network.is_cut
        return not any(cut(a, b) for i, a in enumerate(places) for b in places[i + 1 :])

    def withdraw(self, number: int) -> None:
        if not self.met:
            self.arrived.pop(number, None)

    # ---- sums --------------------------------------------------------------------------------------------------------
    def give(self, name: Any, number: int, part: Any, take: Callable[[dict[int, Any]], None]) -> None:
        """Rank ``number`` brings its part of the sum ``name``; ``take`` gets all parts, if ever."""
        if number in self.over:
            return
        collective = self._collectives.setdefault(name, Collective())
        collective.given[number], collective.take[number] = part, take
        if self._is_complete(collective):
            self._finish(name)

    def _is_complete(self, collective: Collective) -> bool:
        return len(collective.given) == self.size and not self.over

    def _finish(self, name: Any) -> None:
        collective = self._collectives.pop(name)
        for number in sorted(collective.take):
            rank = self.members[number]
            if number in self.deaf:
                rank.process.after(0.002, rank.broken, self, "connection reset by peer")
            else:
                rank.process.after(0.002 + 0.03 * self.world.rng.random(), self._deliver, collective, number)

    def _deliver(self, collective: Collective, number: int) -> None:
        if number not in self.over:
            collective.take[number](collective.given)

    # ---- the end -----------------------------------------------------------------------------------------------------
    def give_up(self, number: int, why: str) -> None:
        """A rank shuts its connections, or died; those that can be reached see it."""
        if number in self.over:
            return
        self.over[number] = why
        gone = self.members.get(number)
        for other, rank in self.members.items():
            if other not in self.over and gone is not None:
                rank.process.after(0.001 + 0.03 * self.world.rng.random(), self._sees, other, gone)

    def _sees(self, number: int, gone: Rank) -> None:
        rank = self.members[number]
        if number in self.over:
            return
        if self.world.network.is_cut(rank.process.place, gone.process.place) or gone.process.place in self.world.dead:
            return  # silence: no packet says that it is gone
        rank.broken(self, f"rank of {gone.agent.worker} has gone")
