"""Which ranks commit a step whose vote they have missed, from the rows that ranks exchange when they meet. Pure.

:mod:`elastrain.elastic.commit.ballot` holds the votes of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Row(Protocol):
    """What a rank contributes when ranks meet."""

    @property
    def step(self) -> int:
        """Committed steps; -1: it holds no state."""

    @property
    def voted(self) -> int:
        """The generation in which it has voted for its next step, and missed the result; 0: in none."""

    @property
    def counted(self) -> int:
        """The generation of the vote by whose result it has committed its last step; 0: the result is not here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens with votes whose result is missing; the same on all ranks."""

    open: list[int]
    """Ranks that have voted and wait. They return to their scripts, and then enter the generation."""
    late: list[int]
    """Those of them whose step counts."""
    ahead: int
    """The rank that gives them the result; meaningless if there are none."""

    @classmethod
    def of(cls, table: Sequence[Row]) -> Verdict:
        """``table``: by rank. Pure."""
        waiting = [r for r, row in enumerate(table) if row.voted]
        newest = max(row.step for row in table)
        votes = {table[r].voted for r in waiting if table[r].step == newest - 1}
        ahead = next((r for r, row in enumerate(table) if row.step == newest and row.counted in votes), -1)
        # By the same vote, not by one of a generation that has repeated the step: replicas stay equal to the bit.
        late = [
            r for r in waiting if table[r].step == newest - 1 and ahead >= 0 and table[r].voted == table[ahead].counted
        ]
        return cls(waiting, late, ahead)
