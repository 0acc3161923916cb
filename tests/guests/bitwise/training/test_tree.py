"""The reduction tree: the association depends only on the leaves, not on the ranks that hold them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.data.order import run_of
from elastrain_bitwise.summation_tree import TreeSum, nodes_of


def add(left: str, right: str) -> str:
    return f"({left}+{right})"


def on_one_rank(leaves: int) -> str:
    tree = TreeSum(leaves, add)
    for leaf in range(leaves):
        tree.push((0, leaf), str(leaf))
    return tree.root()


@pytest.mark.parametrize(
    ("leaves", "written_out"),
    [(1, "0"), (2, "(0+1)"), (3, "((0+1)+2)"), (5, "(((0+1)+(2+3))+4)"), (7, "(((0+1)+(2+3))+((4+5)+6))")],
)
def test_the_tree_is_the_documented_one(leaves, written_out) -> None:
    assert on_one_rank(leaves) == written_out


@given(st.integers(1, 70), st.data())
def test_the_association_is_the_same_for_any_split_of_the_leaves(leaves, data) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, leaves), max_size=12)))
    whole = TreeSum(leaves, add)
    for first, stop in zip([0, *cuts], [*cuts, leaves], strict=True):  # some ranks have no leaf
        rank = TreeSum(leaves, add)
        for leaf in range(first, stop):
            rank.push((0, leaf), str(leaf))
        assert [node for node, _ in rank.parts] == nodes_of(first, stop, leaves)
        assert len(rank.parts) <= 2 * max(1, leaves.bit_length())
        for node, value in rank.parts:
            whole.push(node, value)
    assert whole.root() == on_one_rank(leaves)


@given(st.integers(1, 70))
def test_the_association_is_the_same_if_right_leaves_are_added_without_being_pushed(leaves) -> None:
    tree = TreeSum(leaves, add)
    for leaf in range(leaves):
        left = tree.take_left((0, leaf))
        if left is None:
            tree.push((0, leaf), str(leaf))
        else:
            tree.push((1, leaf // 2), add(left, str(leaf)))
    assert tree.root() == on_one_rank(leaves)


@given(st.integers(0, 6), st.integers(0, 3))
def test_each_rank_sends_one_node_only_if_leaves_and_ranks_are_powers_of_two(exponent, fewer) -> None:
    leaves, world = 2**exponent, 2 ** max(0, exponent - fewer)
    assert all(len(nodes_of(*run_of(leaves, world, rank), leaves)) == 1 for rank in range(world))


def test_an_incomplete_tree_has_no_sum() -> None:
    tree = TreeSum(3, add)
    tree.push((0, 0), "0")
    with pytest.raises(ValueError, match="not complete"):
        tree.root()
