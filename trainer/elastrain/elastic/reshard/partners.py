"""Which rank keeps a copy of which rank's shard. Pure.

A machine takes all of its ranks with it, so a rank's copy belongs on another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


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
