"""Late votes: a rank that holds all its gradients of a step, and lacks the result of its vote.

The ranks of a sharded model do not all hold the same gradients, so that the state of a rank that has committed cannot
replace that of every other. A rank *votes* when all its gradients are complete. A rank that has the sum of the votes
knows that all have voted, and commits. A rank that has voted and lacks the sum, because a peer was lost meanwhile,
keeps its gradients and asks when it meets the others in the next generation. If one of them has committed the step, the
rank receives the result and commits too, late, with the gradients that it kept. If none has, all discard the step.
Either way no state is copied or rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.encoding import decode, encode


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
        """``table``: of all ranks that meet, by rank. Pure."""
        waiting = [r for r, row in enumerate(table) if row.voted]
        newest = max(row.step for row in table)
        votes = {table[r].voted for r in waiting if table[r].step == newest - 1}
        ahead = next((r for r, row in enumerate(table) if row.step == newest and row.counted in votes), -1)
        # By the same vote, not by one of a generation that has repeated the step: replicas stay equal to the bit.
        late = [
            r for r in waiting if table[r].step == newest - 1 and ahead >= 0 and table[r].voted == table[ahead].counted
        ]
        return cls(waiting, late, ahead)


class Ledger:
    """The votes of one rank, and the last result. For the training thread."""

    def __init__(self) -> None:
        self.voted = 0
        """As of :class:`Row`."""
        self._result: Summed | None = None
        self._generation = self._leads_to = 0

    def count(self, result: Summed, generation: int, step: int) -> None:
        """This rank commits by the ``result`` of a vote in ``generation``, and has ``step`` committed steps then."""
        self.voted, self._result, self._generation, self._leads_to = 0, result, generation, step

    def counted(self, step: int) -> int:
        """As of :class:`Row`, if this rank has ``step`` committed steps."""
        return self._generation if self._leads_to == step else 0

    def hear(self, communicator: Communicator, table: Sequence[Row]) -> tuple[Verdict, Summed | None]:
        """All ranks of a generation have met. Returns the verdict, and the result if this rank commits late.

        Raises ``GenerationBroken``.
        """
        verdict = Verdict.of(table)
        if not verdict.late:
            return verdict, None
        mine = encode(self._result) if communicator.rank == verdict.ahead else b""
        result = communicator.all_gather_bytes(mine, Kind.ENTRY)[verdict.ahead]
        if communicator.rank not in verdict.late:
            return verdict, None
        summed: Summed = decode(result)
        return verdict, replace(summed, connected=())
