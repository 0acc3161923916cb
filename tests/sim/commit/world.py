"""The state of a small world, and its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from elastrain.elastic.comm import tree


class Transport(IntEnum):
    """What sums the gradients of a step."""

    TCP = 0
    """The ranks' own connections: the vote travels behind the gradients, and an abort delivers nothing."""
    DEVICE = 1
    """Kernels, as NCCL's: one that an abort ends may tell its peers that it has sent what it has not."""
    SHARDED = 2
    """Groups of shards over the ranks' own connections: ranks vote, and may commit late."""


class Stage(IntEnum):
    """How far a rank is in its step."""

    COMPUTES = 0
    SUMS = 1
    """Its sums are under way."""
    SUMMED = 2
    VOTED = 3
    """Its own vote is in its part of the sum; it waits for those of its children in the tree."""
    PASSED = 4
    """It has sent the sum of its branch to its parent, and waits for the sum of all."""
    HAS = 5
    """It has the sum of all votes, and has sent it to its children."""


STALE = -1
"""In place of the generation in a history: the step was committed with old data in place of a sum."""


class Rank(NamedTuple):
    """One process of training."""

    alive: bool = True
    frozen: bool = False
    lost: bool = False
    """Its lease has expired: others may form a generation without it, and its agent no longer vouches."""
    woke: bool = False
    """It was frozen while it waited for votes."""
    generation: int = 1
    broken: bool = False
    stage: Stage = Stage.COMPUTES
    stale: bool = False
    """Whether a sum of the step has ended with old data."""
    history: tuple[int, ...] = ()
    """For each committed step: the generation whose votes it was committed by, or ``STALE``."""
    voted: int = 0
    """As of the product's ballot."""
    aborted: tuple[int, int] = (0, 0)
    """Generation and step of its kernel that an abort has ended."""

    @property
    def step(self) -> int:
        return len(self.history)

    @property
    def acts(self) -> bool:
        return self.alive and not self.frozen


class World(NamedTuple):
    """All ranks, the members of each generation, and what has been sent."""

    ranks: tuple[Rank, ...]
    generations: tuple[tuple[int, ...], ...]
    sent: int = 0
    """A bit for each message of :meth:`Bounds.bit`."""
    kills: int = 0
    freezes: int = 0
    losses: int = 0

    def with_rank(self, number: int, **changes: object) -> World:
        changed = self.ranks[number]._replace(**changes)
        return self._replace(ranks=(*self.ranks[:number], changed, *self.ranks[number + 1 :]))

    def members(self, generation: int) -> tuple[int, ...]:
        return self.generations[generation - 1]

    def has_left(self, number: int, generation: int) -> bool:
        """Whether this rank has closed its connections of ``generation``."""
        rank = self.ranks[number]
        return not rank.alive or rank.broken or rank.generation != generation


@dataclass(frozen=True)
class Bounds:
    """What may happen in a world, and how often."""

    transport: Transport
    ranks: int = 2
    steps: int = 2
    generations: int = 3
    kills: int = 1
    freezes: int = 1
    losses: int = 1
    """Leases that expire while their ranks live."""
    shards: int = 1
    fan: int = 2
    """Children of a rank in the tree that votes travel over."""
    without: frozenset[str] = frozenset()
    """Parts of the rule that are left out, to see that the search finds what they are for."""

    def bit(self, generation: int, step: int, hop: int, sender: int, receiver: int) -> int:
        """The message of ``hop`` (0: gradients, 1: votes of a branch, to the parent; 2: their sum, to a child)."""
        number = ((generation - 1) * self.steps + step) * 3 + hop
        return 1 << ((number * self.ranks + sender) * self.ranks + receiver)

    def parent(self, members: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Of ``number`` in the tree; none of the first member."""
        above = tree.parent(members.index(number), self.fan)
        return () if above is None else (members[above],)

    def children(self, members: tuple[int, ...], number: int) -> tuple[int, ...]:
        return tuple(members[place] for place in tree.children(members.index(number), len(members), self.fan))

    def shard(self, rank: int) -> int:
        return rank % self.shards

    @property
    def start(self) -> World:
        return World((Rank(),) * self.ranks, (tuple(range(self.ranks)),))


def parts(of: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The receivers that a message of a rank may reach if the rank ends while it sends: none, or some of them."""
    for mask in range(2 ** len(of)):
        yield tuple(r for place, r in enumerate(of) if mask >> place & 1)
