"""Whether a step counts, on a rank that holds all its gradients and lacks the result of the last sum.

The ranks of a sharded model do not all hold the same gradients, so that the state of a rank that has committed cannot
replace that of every other. A rank *votes* when all its gradients are complete. A rank that has the sum of the votes
knows that all have voted, and commits. A rank that has voted and lacks the sum, because a peer was lost meanwhile,
keeps its gradients and asks when it meets the others in the next generation. If one of them has committed the step, the
rank receives the result and commits too, late, with the gradients that it kept. If none has, all discard the step.
Either way no state is copied or rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.verdict import Row, Verdict
from elastrain.elastic.encoding import decode, encode


class Ballot:
    """The votes of one rank. For the training thread."""

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
