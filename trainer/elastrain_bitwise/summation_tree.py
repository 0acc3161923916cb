"""The fixed order in which gradients are added in bitwise mode: a binary tree over the logical micro-batches.

Floating-point addition is not associative: the same gradients added in another order give other bits. Here the order is
a property of the leaves, not of the ranks. Node ``(level, i)`` is the sum of the leaves ``[i * 2**level, (i + 1) *
2**level)``, made by adding its two halves, left to right. A node whose right half lies beyond the last leaf is its left
half. A rank adds all halves within its run of leaves. The largest nodes inside the run remain, at most two per level,
and the nodes of all ranks complete the tree. (Pairwise summation, as in N. Higham, "The accuracy of floating point
summation", SIAM J. Sci. Comput. 14, 1993; its error grows only with the logarithm of the leaves.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Node = tuple[int, int]
"""Level (0: a leaf) and index within the level."""


class TreeSum(Generic[T]):
    """Sums nodes, pushed in the order of their leaves, as soon as both halves are there."""

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        """``leaves``: number of leaves of the whole tree. ``add(left, right)`` may reuse the memory of ``left``."""
        self.parts: list[tuple[Node, T]] = []
        """The largest nodes of the leaves pushed so far."""
        self._leaves, self._add = leaves, add

    def push(self, node: Node, value: T) -> None:
        """Add the next node, to the right of all before."""
        level, index = node
        while (1 << level) < self._leaves:
            left = self.parts[-1] if self.parts else None
            if index % 2 == 1:
                if left is None or left[0] != (level, index - 1):
                    break  # its left half is on another rank
                self.parts.pop()
                value = self._add(left[1], value)
            elif (index + 1) << level < self._leaves:
                break  # its right half follows, or is on another rank
            level, index = level + 1, index // 2
        self.parts.append(((level, index), value))

    def take_left(self, node: Node) -> T | None:
        """Remove and return the left half of ``node``'s parent, if it was pushed last; the caller pushes the parent."""
        level, index = node
        if index % 2 == 1 and self.parts and self.parts[-1][0] == (level, index - 1):
            return self.parts.pop()[1]
        return None

    def root(self) -> T:
        """The sum of all leaves. Raises ``ValueError`` if some are missing."""
        if len(self.parts) != 1 or (1 << self.parts[0][0][0]) < self._leaves:
            raise ValueError(f"the tree over {self._leaves} leaves is not complete: {[n for n, _ in self.parts]}")
        return self.parts[0][1]


def nodes_of(first: int, stop: int, leaves: int) -> list[Node]:
    """The nodes that remain of the leaves ``[first, stop)`` after all possible additions, in order. Pure."""
    run: TreeSum[None] = TreeSum(leaves, lambda _left, _right: None)
    for leaf in range(first, stop):
        run.push((0, leaf), None)
    return [node for node, _ in run.parts]
