"""The tree of small sums: its shape, and sums over real sockets, with the ranks as threads of the test."""

import math
import threading
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.elastic.comm import tree
from elastrain.elastic.comm.header import Kind

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


# ---- over sockets, two hops deep -------------------------------------------------------------------------------------
DEEP = 12
"""Ranks: 1 passes on between 0 and 9 to 11."""


def vote(c):
    values = torch.tensor([1.0, float(c.rank), 0.1 * c.rank], dtype=torch.float64)
    torch.futures.wait_all(c.sum_together(values, kind=Kind.CONTROL))
    return values


def test_all_ranks_have_the_same_bits_if_ranks_between_pass_the_sum_on(connect, each) -> None:
    ranks = connect(DEEP)
    for _ in range(3):
        sums = each(vote, ranks)
        assert all(torch.equal(one, sums[0]) for one in sums)
        assert sums[0][:2].tolist() == [DEEP, sum(range(DEEP))]
    assert not any(c.broken for c in ranks)


@pytest.mark.parametrize("lost", [0, 1, 5, 11], ids=["root", "between", "leaf of the root", "leaf below"])
def test_no_rank_counts_a_sum_without_the_vote_of_a_lost_one(lost, connect, each) -> None:
    ranks = connect(DEEP)
    each(vote, ranks)
    ranks[lost].abort("killed")
    others = [c for c in ranks if c.rank != lost]
    each(vote, others)
    assert all(c.broken for c in others)


@pytest.mark.parametrize("silent", [0, 1, 11])
def test_all_ranks_give_a_sum_up_that_is_called_off_for_a_silent_one(silent, connect, each) -> None:
    ranks = connect(DEEP)
    others = [c for c in ranks if c.rank != silent]
    for c in others:
        threading.Timer(0.05, c.call_off, ["a member is lost"]).start()
    each(vote, others)
    assert all(c.broken for c in others)
