"""The tree of small sums: its shape, and sums over real sockets, with the ranks as threads of the test."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.elastic.comm import tree

WORLDS = st.integers(1, 3000)
FANS = st.integers(1, 16)


@examples(100)
@given(world=WORLDS, fan=FANS)
def test_every_rank_but_the_first_is_the_child_of_one_rank(world, fan) -> None:
    counted = Counter(child for rank in range(world) for child in tree.children(rank, world, fan))
    assert counted == Counter(range(1, world))
    assert all(rank in tree.children(tree.parent(rank, fan), world, fan) for rank in range(1, world))


@examples(100)
@given(world=WORLDS, fan=FANS)
def test_a_rank_has_at_most_a_parent_and_as_many_children_as_the_fan_allows(world, fan) -> None:
    for rank in range(world):
        peers = tree.neighbours(rank, world, fan)
        assert len(peers) <= fan + 1
        assert all(rank in tree.neighbours(peer, world, fan) for peer in peers)


@examples(100)
@given(world=WORLDS, fan=st.integers(2, 16))
def test_the_way_grows_with_the_logarithm_of_the_world(world, fan) -> None:
    def way(rank: int) -> int:
        above = tree.parent(rank, fan)
        return 0 if above is None else 1 + way(above)

    depth = tree.depth(world, fan)
    assert depth == max(way(rank) for rank in range(world))
    assert depth <= math.log(world, fan) + 1


@pytest.mark.parametrize(("world", "depth"), [(1, 0), (2, 1), (9, 1), (10, 2), (73, 2), (74, 3), (512, 3)])
def test_up_to_nine_ranks_the_tree_is_a_star_and_512_are_three_hops_deep(world, depth) -> None:
    assert tree.depth(world) == depth
