"""The fixed order in which gradients are added in bitwise mode: a binary tree over the logical micro-batches.

Floating-point addition is not associative, so the same gradients added in another order give other bits. Here the
order is a property of the leaves, not of who holds them: node ``(level, i)`` is the sum of the leaves
``[i * 2**level, (i + 1) * 2**level)``, made by adding its two halves, left to right. A node whose right half lies
beyond the last leaf is its left half. A rank adds what it can of its run of leaves; what remains are the largest nodes
inside the run, at most two per level, and whoever has the nodes of all ranks can complete the tree. (Pairwise
summation, as in N. Higham, "The accuracy of floating point summation", 1993; its error grows with the logarithm of the
leaves only.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Node = tuple[int, int]
"""Level (0: a leaf) and index within the level."""


class TreeSum(Generic[T]):
    """Nodes given in the order of their leaves, added as soon as both halves are there."""

    def __init__(self, leaves: int, add: Callable[[T, T], T]) -> None:
        """``leaves``: of the whole tree. ``add(left, right)`` may reuse the memory of ``left``."""
        self.parts: list[tuple[Node, T]] = []
        """The largest nodes of what was given so far."""
        self._leaves, self._add = leaves, add

    def push(self, node: Node, value: T) -> None:
        """Add the next node to the right of those given before."""
        level, index = node
        while (1 << level) < self._leaves:
            left = self.parts[-1] if self.parts else None
            if index % 2 == 1:
                if left is None or left[0] != (level, index - 1):
                    break  # its left half is elsewhere
                self.parts.pop()
                value = self._add(left[1], value)
            elif (index + 1) << level < self._leaves:
                break  # its right half is still to come, or elsewhere
            level, index = level + 1, index // 2
        self.parts.append(((level, index), value))

    def take_left(self, node: Node) -> T | None:
        """The left half of the parent of ``node``, if it was given last: for who adds to it and pushes the parent."""
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
    """What remains of the leaves ``[first, stop)`` when all that can be is added, in order."""
    run: TreeSum[None] = TreeSum(leaves, lambda _left, _right: None)
    for leaf in range(first, stop):
        run.push((0, leaf), None)
    return [node for node, _ in run.parts]
