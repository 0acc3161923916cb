"""The state that a generation begins with, if each rank holds one shard of it. Pure.

A rank contributes what it holds: its shard of the live state, and snapshots in host memory. Each *snapshot* is of its
own shard and of that of another rank, its *predecessor*, so that the shard of a lost rank is still with another one. A
state is *whole* if each of its shards has a holder. A machine takes all of its ranks with it, so a rank's copy belongs
on another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elastrain.elastic.reshard.plan import assign

FRESH = -1
"""Instead of a step: the state with which the script of a process begins."""
Copy = tuple[int, int, int]
"""One state in one placement: committed steps, the generation by whose votes they were committed, number of shards."""


@dataclass(frozen=True, slots=True)
class ShardRef:
    """One rank's shard of one state."""

    step: int
    """Committed steps."""
    shards: int
    """Of the placement; 0: it holds nothing."""
    shard: int
    by: int = 0
    """The generation by whose votes the last step was committed, or in which training began. A rank that lost its place
    may hold a step that the others have repeated without it: shards of two such states make no whole."""
    predecessor: int = -1
    """The shard of another rank, of which a snapshot has a copy; -1: of none."""

    @property
    def copy(self) -> Copy:
        """What it is a shard of."""
        return self.step, self.by, self.shards

    @property
    def given(self) -> tuple[int, ...]:
        """The shards that it has, its own first."""
        return (self.shard,) if self.predecessor in (-1, self.shard) else (self.shard, self.predecessor)


NOTHING = ShardRef(FRESH, 0, 0)
"""No shard of any state."""


@dataclass(frozen=True, slots=True)
class HeldShards:
    """What a rank contributes when ranks meet."""

    live: ShardRef
    """Of the state that it trains; also of the one with which its script has begun."""
    snapshots: Sequence[ShardRef] = ()
    """Those that it can give."""

    def of(self, copy: Copy, *, snapshot: bool) -> tuple[int, ...]:
        """Its shards of ``copy``, its own first."""
        if not snapshot:
            return (self.live.shard,) if self.live.copy == copy else ()
        return next((held.given for held in self.snapshots if held.copy == copy), ())


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Where the state comes from; the same on all ranks."""

    step: int
    """Committed steps; :data:`FRESH`: training begins."""
    shards: int
    """Of its placement; 0: no whole state is left."""
    held: tuple[tuple[int, ...], ...]
    """By rank: the shards that it can give, its own one first. Empty: it receives its state."""
    snapshot: bool = False
    """Whether it is a snapshot: committed steps after it are repeated."""
    kept: Copy | None = None
    """The newest whole snapshot."""
    by: int = 0
    """As of :class:`ShardRef`."""

    @property
    def copy(self) -> Copy:
        """The state, in its old placement."""
        return self.step, self.by, self.shards

    @property
    def lost(self) -> bool:
        """Whether ranks hold state of which no whole is left: none of them can continue."""
        return not self.shards

    @classmethod
    def of(cls, table: Sequence[HeldShards]) -> RestorePlan:
        """The newest whole state of ``table``, by rank; the live one rather than a snapshot of the same step.

        Shards of different states or placements make no whole. A fresh state counts only if no rank holds another.
        """
        live = {(row.live.copy, False) for row in table if row.live.shards}
        kept = {(held.copy, True) for row in table for held in row.snapshots}
        states = live | kept
        if any(copy[0] != FRESH for copy, _ in states):
            states = {(copy, snapshot) for copy, snapshot in states if copy[0] != FRESH}
        found = cls(FRESH, 0, ((),) * len(table))
        for copy, snapshot in sorted(states, key=lambda s: (s[0][:2], not s[1], s[0])):
            step, by, shards = copy
            held = tuple(row.of(copy, snapshot=snapshot) for row in table)
            if {shard for parts in held for shard in parts} == set(range(shards)):
                found = cls(step, shards, held, snapshot, copy if snapshot else found.kept, by)
        return found

    def places(self) -> list[int]:
        """By rank: its shard in the new placement."""
        return assign([parts[0] if parts else None for parts in self.held], self.shards)


# -- which rank keeps a copy of which rank's shard --------------------------------------------------------------------
class Home(NamedTuple):
    """Where a rank runs."""

    node: int
    """The same number for ranks of one machine."""
    worker: int
    """The same number for ranks of one worker."""


def partners(homes: Sequence[Home]) -> list[int]:
    """By rank: the one that keeps its copy; each rank keeps one.

    It is on another node as far as possible, and on another worker if workers have equally many ranks. More than half
    of the ranks cannot all have a partner elsewhere: if so many are on one node, the fewest possible have theirs there.
    """
    order = sorted(range(len(homes)), key=lambda rank: (homes[rank], rank))
    by_node, by_worker = (max(Counter(key).values()) for key in ([home.node for home in homes], homes))
    # In this order the ranks of a node, and of a worker, are neighbours: from each of them, as many ranks further as
    # the largest node has is another node, unless that leads around the ring into the same one.
    ahead = next((size for size in (by_node, by_worker) if size < len(homes)), 1)
    return [other for _, other in sorted(zip(order, order[ahead:] + order[:ahead], strict=True))]
