"""The state that a generation begins with, if each rank holds one shard of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.group.entry import Entry, EntryRow
from elastrain.elastic.reshard.restore import FRESH, NOTHING, HeldShards, RestorePlan, ShardRef

ROW = EntryRow(NOTHING, size=2, reached=7, structure=5)


@st.composite
def held(draw: st.DrawFn, least: int = 0) -> ShardRef:
    shards = draw(st.integers(1, 3))
    shard, predecessor = draw(st.integers(0, shards - 1)), draw(st.integers(0, shards - 1))
    return ShardRef(draw(st.integers(least, 3)), shards, shard, draw(st.integers(1, 2)), predecessor)


@st.composite
def tables(draw: st.DrawFn) -> list[HeldShards]:
    rows = st.builds(HeldShards, st.one_of(st.just(NOTHING), held(FRESH)), st.lists(held(), max_size=2))
    return draw(st.lists(rows, min_size=1, max_size=5))


@given(tables())
def test_the_newest_whole_state_is_taken_and_every_shard_of_it_has_a_holder(table: list[HeldShards]) -> None:
    restore = RestorePlan.of(table)
    if restore.lost:
        assert not any(restore.held)
        return
    assert {shard for parts in restore.held for shard in parts} == set(range(restore.shards))
    for row, parts in zip(table, restore.held, strict=True):
        assert set(parts) <= set(row.of(restore.copy, snapshot=restore.snapshot))
    assert sorted(restore.places()) == list(range(len(table)))
    for row in table:  # one rank that holds a newer state on its own would be taken instead
        assert all(kept.shards > 1 or kept.step <= restore.step for kept in row.snapshots)


@pytest.mark.parametrize(
    ("table", "step", "shards", "snapshot"),
    [
        ([ShardRef(8, 2, 0), ShardRef(8, 2, 1)], 8, 2, False),
        ([ShardRef(8, 2, 0), ShardRef(8, 2, 1), NOTHING], 8, 2, False),  # a joiner
        ([ShardRef(8, 2, 0), ShardRef(7, 2, 1)], FRESH, 0, False),  # of different steps
        ([ShardRef(8, 2, 0), ShardRef(8, 3, 1)], FRESH, 0, False),  # of different placements
        (
            [ShardRef(8, 2, 0, by=4), ShardRef(8, 2, 1, by=5)],
            FRESH,
            0,
            False,
        ),  # of a step that two generations committed
        (
            [ShardRef(8, 3, 0), ShardRef(8, 3, 1), ShardRef(FRESH, 1, 0)],
            FRESH,
            0,
            False,
        ),  # a fresh state does not replace another
        ([ShardRef(FRESH, 2, 1), ShardRef(FRESH, 2, 0)], FRESH, 2, False),  # the start
        ([ShardRef(FRESH, 2, 0), ShardRef(FRESH, 2, 0)], FRESH, 0, False),
    ],
)
def test_the_state_of_live_ranks(table, step, shards, snapshot) -> None:
    restore = RestorePlan.of([HeldShards(live) for live in table])
    assert (restore.step, restore.shards, restore.snapshot) == (step, shards, snapshot)


@pytest.mark.parametrize(
    ("live", "snapshots", "step", "shards"),
    [
        # Of four ranks number 2 is lost. The others have two snapshots each, of which the newer is not complete.
        ([(9, 4, 0), (9, 4, 1), (9, 4, 3)], [[(8, 4, 0), (4, 4, 0)], [(4, 4, 1)], [(8, 4, 3), (4, 4, 3)]], 4, 4),
        ([(9, 4, 0), (9, 4, 1), (9, 4, 3)], [[(8, 4, 0), (4, 4, 0)], [(8, 4, 1)], [(8, 4, 3), (4, 4, 3)]], 8, 4),
        # Two are lost of which one kept the other's copy.
        ([(9, 4, 0), (9, 4, 3)], [[(8, 4, 0)], [(8, 4, 3)]], FRESH, 0),
        # Two of which neither did.
        ([(9, 4, 0), (9, 4, 2)], [[(8, 4, 0)], [(8, 4, 2)]], 8, 4),
    ],
)
def test_snapshots_take_the_place_of_a_state_that_is_not_whole(live, snapshots, step, shards) -> None:
    """Each rank keeps a copy of the shard before its own."""
    kept = [[ShardRef(*one, predecessor=(one[2] - 1) % one[1]) for one in some] for some in snapshots]
    table = [HeldShards(ShardRef(*one), some) for one, some in zip(live, kept, strict=True)]
    restore = RestorePlan.of(table)
    assert (restore.step, restore.shards, restore.snapshot) == (step, shards, step != FRESH)


def test_joiners_receive_what_is_not_sharded_from_ranks_with_the_state() -> None:
    table = [replace(ROW, live=held) for held in (ShardRef(FRESH, 2, 0), ShardRef(7, 2, 1), ShardRef(7, 2, 0))]
    entry = Entry.of(table, "all")
    assert (entry.sources, entry.receivers, entry.partial, entry.cold) == ([1, 2], [0], [], False)
    assert entry.restore is not None
    assert entry.restore.places() == [1, 2, 0]


def test_all_ranks_start_anew_if_no_whole_state_is_left() -> None:
    entry = Entry.of([replace(ROW, live=ShardRef(7, 3, 0)), replace(ROW, live=ShardRef(FRESH, 1, 0))], "all")
    assert entry.partial == [0, 1]


def test_shards_of_one_step_make_no_whole_if_two_generations_committed_it() -> None:
    """A rank that had lost its place returns; the others have repeated its last step without it."""
    returned, repeated = replace(ROW, live=ShardRef(7, 2, 0, by=4)), replace(ROW, live=ShardRef(7, 2, 1, by=5))
    assert Entry.of([returned, repeated], "all").partial == [0, 1]
    joined = Entry.of([returned, repeated, replace(repeated, live=ShardRef(7, 2, 0, by=5))], "all")
    assert (joined.partial, joined.sources, joined.receivers) == ([], [1, 2], [0])


def test_a_snapshot_of_a_step_is_not_completed_by_one_of_another_generation() -> None:
    def rows(of_first: int, of_last: int) -> list[EntryRow]:
        held = ShardRef(6, 3, 0, of_first, predecessor=2), ShardRef(6, 3, 2, of_last, predecessor=1)
        return [replace(ROW, live=ShardRef(7, 3, one.shard, by=4), snapshots=(one, NOTHING)) for one in held]

    assert Entry.of(rows(4, 5), "all").partial == [0, 1]
    same = Entry.of(rows(4, 4), "all")
    assert (same.partial, same.restore and same.restore.copy) == ([], (6, 4, 3))
