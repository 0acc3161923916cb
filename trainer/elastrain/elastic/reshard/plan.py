"""Which rows of a tensor travel from which rank to which one when the number of shards changes. Pure.

A tensor is cut along its first dimension as by ``torch.chunk``: shards of equal height, of which the last ones may be
smaller or empty. A *placement* gives each rank its shard. Rows that a rank already holds never travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastrain.elastic.state.parts import bounds


@dataclass(frozen=True, slots=True)
class Move:
    """Rows ``start`` to ``stop`` of the whole tensor, from one rank's part ``shard`` of the old placement."""

    source: int
    receiver: int
    """The same as ``source``: the rank keeps these rows."""
    shard: int
    start: int
    stop: int


def assign(old: Sequence[int | None], shards: int) -> list[int]:
    """The new shard of each rank, so that the ranks keep as much as they can of what they hold.

    ``old``: by rank, its shard of ``shards`` in the old placement; None: it holds nothing. Joiners take the places
    between the others: with the joiner in the middle, growth from 2 to 3 ranks moves a third of the state, and half of
    it with the joiner at the end. For tensors that divide evenly, no other placement keeps more.
    """
    size = len(old)
    holders = sorted((shard, rank) for rank, shard in enumerate(old) if shard is not None)
    # Ranks that keep something stay in their order: exchanging two of them keeps no more. So the best chain of pairs
    # (rank, place) that ends at each place, holder by holder; the windows of places only move forward.
    ends: list[_Chain | None] = [None] * size
    before: _Chain | None = None
    first = 0
    for shard, rank in holders:
        low, high = shard * size // shards, ((shard + 1) * size - 1) // shards
        while first < low:
            before, first = _longer(before, ends[first]), first + 1
        best = before
        for place in range(low, high + 1):
            own = min((shard + 1) * size, (place + 1) * shards) - max(shard * size, place * shards)
            chain = _Chain(own + (best.kept if best else 0), rank, place, best)
            best, ends[place] = _longer(best, ends[place]), _longer(ends[place], chain)
    while first < size:
        before, first = _longer(before, ends[first]), first + 1
    placed: dict[int, int] = {}
    while before is not None:
        placed[before.rank], before = before.place, before.rest
    free = iter(sorted(set(range(size)) - set(placed.values())))
    return [placed[r] if r in placed else next(free) for r in range(size)]


@dataclass(frozen=True, slots=True)
class _Chain:
    kept: int
    """In units of 1 / (shards * size)."""
    rank: int
    place: int
    rest: _Chain | None


def _longer(one: _Chain | None, other: _Chain | None) -> _Chain | None:
    return other if one is None or (other is not None and other.kept > one.kept) else one


def moves(rows: int, held: Sequence[Sequence[int]], shards: int, places: Sequence[int | None]) -> list[Move]:
    """All rows of the new placement, each once: those that travel, and those that a rank keeps.

    ``held``: by rank, its shards of ``shards`` in the old placement; each shard has a holder. ``places``: by rank, its
    shard in the new placement; None: it leaves. Holders of the same rows take turns.
    """
    size = sum(place is not None for place in places)
    holders: list[list[int]] = [[] for _ in range(shards)]
    for rank, parts in enumerate(held):
        for shard in parts:
            holders[shard].append(rank)
    height = -(-rows // shards)
    found = []
    for receiver, place in enumerate(places):
        if place is None:
            continue
        start, stop = bounds(rows, size, place)
        while start < stop:
            shard = start // height
            until = min(stop, (shard + 1) * height)
            sources = holders[shard]
            source = receiver if receiver in sources else sources[(receiver + shard) % len(sources)]
            found.append(Move(source, receiver, shard, start, until))
            start = until
    return found
