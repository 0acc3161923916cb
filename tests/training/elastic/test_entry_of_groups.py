"""The entry of a generation whose ranks hold parts of the model, and the verdict on votes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.commit.ledger import Verdict
from elastrain.elastic.group.entry import Entry, EntryRow, newest_whole
from elastrain.elastic.reshard.restore import ShardRef

HOLDER = EntryRow(ShardRef(7, 1, 0), size=4, reached=7, structure=5)


def holder(step: int, shard: int, by: int = 0) -> EntryRow:
    return replace(HOLDER, live=ShardRef(step, 2, shard, by))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[EntryRow], int]:
    shards = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 4))
    steps = st.sampled_from([-1, 6, 7, 8])
    return [holder(draw(steps), r % shards) for r in range(groups * shards)], shards


@given(tables())
def test_each_part_comes_from_ranks_that_hold_it_at_the_newest_step_of_which_all_parts_are_held(world) -> None:
    table, shards = world
    entry = Entry.of(table, shards)
    step = newest_whole(table, shards)[0]
    for rank, row in enumerate(table):
        transfer = entry.transfer(rank)
        assert transfer.sources, "a part has no source"
        assert all(table[r].live.shard == row.live.shard for r in (*transfer.sources, *transfer.receivers))
        assert rank in transfer.receivers or row.step == step or rank in transfer.sources
        assert step < 0 or all(table[r].step == step for r in transfer.sources)
        assert not set(transfer.sources) & set(transfer.receivers)
    held = [{row.step for row in table if row.live.shard == shard} for shard in range(shards)]
    assert step == max(set.intersection(*held) - {-1}, default=-1)


@given(tables())
def test_ranks_start_anew_exactly_if_they_hold_parts_of_a_state_that_is_not_whole(world) -> None:
    table, shards = world
    entry = Entry.of(table, shards)
    lost = newest_whole(table, shards) == (-1, 0)
    assert entry.partial == [r for r, row in enumerate(table) if lost and row.step >= 0]
    assert entry.cold == lost


@pytest.mark.parametrize(
    ("steps", "sources", "receivers"),
    [
        ([7, 7, -1, -1], [0, 1], [2, 3]),  # a group joins
        ([7, 7, 7, -1], [0, 2, 1], [3]),  # a rank returns to its group
        ([7, 6, 7, 7], [0, 2, 3], [1]),  # a rank is a step behind
        ([8, 7, 7, 7], [2, 1, 3], [0]),  # of step 8 the other part is lost
        ([-1, -1, -1, -1], [0, 1], [2, 3]),  # the start: the first group's state is that of all
    ],
)
def test_sources_and_receivers_of_two_groups_of_two(steps, sources, receivers) -> None:
    entry = Entry.of([holder(step, r % 2) for r, step in enumerate(steps)], 2)
    assert (entry.sources, entry.receivers) == (sources, receivers)


def test_a_step_that_was_repeated_without_a_rank_replaces_the_step_that_the_rank_has_committed() -> None:
    """The rank committed step 7 as the last one of generation 3, was excluded, and has returned."""
    table = [holder(7, 0, by) for by in (3, 5, 5)]
    entry = Entry.of(table)
    assert (entry.sources, entry.receivers) == ([1, 2], [0])
    assert entry.transfer(0).sources == [1, 2]


@pytest.mark.parametrize(
    ("rows", "waiting", "late", "ahead"),
    [
        ([(7, 0, 3), (7, 0, 3)], [], [], -1),
        ([(8, 0, 4), (7, 4, 3), (8, 0, 4)], [1], [1], 0),  # it has missed the result
        ([(7, 4, 3), (7, 4, 3), (7, 0, 3)], [0, 1], [], -1),  # none of them has committed
        ([(9, 0, 6), (7, 4, 3)], [1], [], -1),  # the others are two steps ahead: it takes their state
        ([(8, 0, 5), (7, 4, 3)], [1], [], -1),  # they have repeated the step, in another generation
        ([(8, 0, 0), (7, 4, 3), (8, 0, 4)], [1], [1], 2),  # a rank that took its state has no result to give
        ([(8, 4, 4), (7, 4, 3)], [0, 1], [1], 0),  # a rank that has committed may have voted for the next step
    ],
)
def test_a_vote_counts_exactly_if_a_rank_has_committed_by_its_result(rows, waiting, late, ahead) -> None:
    table = [replace(holder(step, 0), voted=voted, counted=counted) for step, voted, counted in rows]
    assert Verdict.of(table) == Verdict(waiting, late, ahead)
