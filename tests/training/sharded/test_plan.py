"""Which rows travel when the number of shards changes."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.reshard.plan import assign, bounds, moves
from elastrain.elastic.state.transfer import buckets


def kept(old: list[int | None], shards: int, places: list[int], rows: int) -> int:
    """Rows that ranks hold and still need."""
    total = 0
    for shard, place in zip(old, places, strict=True):
        if shard is not None:
            (a, b), (c, d) = bounds(rows, shards, shard), bounds(rows, len(old), place)
            total += max(0, min(b, d) - max(a, c))
    return total


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[list[int]], int, list[int | None], int]:
    """What ranks hold of how many shards, their new places, and a tensor's rows."""
    shards, size, leavers = draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(0, 2))
    ranks = size + leavers
    held = [draw(st.lists(st.integers(0, shards - 1), unique=True, max_size=2)) for _ in range(ranks)]
    for shard in range(shards):  # each has a holder
        if not any(shard in parts for parts in held):
            held[draw(st.integers(0, ranks - 1))].append(shard)
    places = draw(st.permutations([*range(size), *[None] * leavers]))
    return held, shards, places, draw(st.integers(0, 40))


@given(changes())
def test_every_row_arrives_once_from_a_rank_that_holds_it_and_no_row_travels_that_a_rank_holds(change) -> None:
    held, shards, places, rows = change
    size = len([p for p in places if p is not None])
    found = moves(rows, held, shards, places)
    for rank, place in enumerate(places):
        arrived = [row for m in found if m.receiver == rank for row in range(m.start, m.stop)]
        assert sorted(arrived) == (list(range(*bounds(rows, size, place))) if place is not None else [])
    for m in found:
        low, high = bounds(rows, shards, m.shard)
        assert m.shard in held[m.source]
        assert low <= m.start < m.stop <= high
    sent = sum(m.stop - m.start for m in found if m.source != m.receiver)
    own = [{row for shard in parts for row in range(*bounds(rows, shards, shard))} for parts in held]
    needed = [set(range(*bounds(rows, size, p))) if p is not None else set() for p in places]
    assert sent == sum(len(need - have) for need, have in zip(needed, own, strict=True)), "not the lower bound"


@given(st.integers(1, 6), st.data())
def test_no_other_placement_keeps_more(size: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, 6))
    holders = data.draw(st.integers(0, min(size, shards)))
    of = data.draw(st.permutations(range(shards)))[:holders]
    old = data.draw(st.permutations([*of, *[None] * (size - holders)]))
    rows = 60 * size * shards
    places = assign(old, shards)
    assert sorted(places) == list(range(size))
    best = max(kept(old, shards, list(p), rows) for p in permutations(range(size)))
    assert kept(old, shards, places, rows) == best


@pytest.mark.parametrize(
    ("old", "shards", "places", "travels"),
    [
        ([0, 1, None], 2, [0, 2, 1], 1 / 3),  # the joiner in the middle
        ([0, 1], 3, [0, 1], 1 / 2),  # the last of three has left
        ([1, 0], 2, [1, 0], 0),  # nothing changes
        ([0, 1, 2, None, None], 3, [0, 2, 4, 1, 3], 2 / 5),
    ],
)
def test_joiners_take_places_between_the_others(old, shards, places, travels) -> None:
    assert assign(old, shards) == places
    rows = 60 * len(old) * shards
    assert 1 - kept(old, shards, places, rows) / rows == pytest.approx(travels)


def test_holders_of_the_same_rows_take_turns() -> None:
    found = moves(12, [[0], [0], [], [], [], []], 1, [0, 1, 2, 3, 4, 5])
    assert {m.source for m in found if m.receiver > 1} == {0, 1}


@given(st.lists(st.integers(0, 20)), st.integers(1, 20))
def test_a_bucket_exceeds_its_bytes_only_if_it_is_one_tensor(sizes: list[int], most: int) -> None:
    found = buckets(sizes, most)
    assert [number for bucket in found for number in bucket] == list(range(len(sizes)))
    assert all(len(bucket) == 1 or sum(sizes[n] for n in bucket) <= most for bucket in found)
