"""The decisions of the model: those of the product, which are pure."""

from __future__ import annotations

from functools import cache

from commit.world import Bounds, World
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.decide import Counts, Known, decide
from elastrain.elastic.commit.ledger import Verdict
from elastrain.elastic.group.entry import Entry, EntryRow
from elastrain.elastic.reshard.restore import ShardRef

SUMMED = Summed([0.0] * control.SIZE, ())


@cache
def counts(generation: int, *, summed: bool, intact: bool) -> bool:
    """Whether the step counts on this rank."""
    return isinstance(decide(Known(generation, SUMMED if summed else None, vouched=intact)), Counts)


@cache
def verdict(table: tuple[EntryRow, ...]) -> Verdict:
    """Which ranks commit late."""
    return Verdict.of(table)


@cache
def entry(table: tuple[EntryRow, ...], shards: int) -> Entry:
    """How the generation begins."""
    return Entry.of(table, shards)


def row(bounds: Bounds, world: World, number: int) -> EntryRow:
    """The contribution of a rank to the entry of the next generation."""
    rank = world.ranks[number]
    by = rank.history[-1] if rank.history else 0
    live = ShardRef(
        rank.step, bounds.shards, bounds.shard(number), 0 if "generation of the state" in bounds.without else by
    )
    size = len(world.members(rank.generation))
    return EntryRow(live, size=size, reached=0, voted=rank.voted, counted=by)
