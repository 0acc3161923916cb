"""Which rank keeps a copy of which rank's shard."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.reshard.restore import Home, partners

A, B, C = 11, 5, 7
"""Nodes."""


def cluster(nodes: list[int], nproc: int) -> list[Home]:
    """Workers of ``nproc`` ranks each, on these nodes."""
    return [Home(node, worker * nproc) for worker, node in enumerate(nodes) for _ in range(nproc)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(1, 4))
def test_each_rank_keeps_one_copy_and_as_few_as_possible_are_on_the_node_of_what_they_copy(nodes, nproc) -> None:
    homes = cluster(nodes, nproc)
    found = partners(homes)
    assert sorted(found) == list(range(len(homes)))
    together = sum(homes[rank].node == homes[other].node for rank, other in enumerate(found))
    largest = max(Counter(home.node for home in homes).values())
    assert together == max(0, 2 * largest - len(homes))
    if len(nodes) > 1:
        assert all(homes[rank].worker != homes[other].worker for rank, other in enumerate(found))


@pytest.mark.parametrize(
    ("homes", "found"),
    [
        (cluster([A], 1), [0]),
        (cluster([A], 3), [1, 2, 0]),  # one worker: the next rank
        (cluster([A, B, C], 1), [1, 2, 0]),
        (cluster([A, B], 2), [2, 3, 0, 1]),
        (cluster([A, A], 2), [2, 3, 0, 1]),  # one node: another worker
        (cluster([A, B, A, B], 1), [1, 0, 3, 2]),
        ([Home(A, 0), Home(A, 0), Home(A, 0), Home(B, 3)], [3, 0, 1, 2]),  # three ranks cannot all have theirs on B
    ],
)
def test_partners_are_on_other_nodes_or_else_on_other_workers(homes, found) -> None:
    assert partners(homes) == found
