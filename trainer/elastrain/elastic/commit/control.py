"""The control vector: the values that ranks must agree on, summed over all ranks once a step.

Every rank reads the same sums, and all take the same decision at the same step, without an additional wait. Slot
``number % SLOTS`` counts the ranks that are *not* connected to generation ``number``: zero is exact in every
floating-point type, for any number of ranks. All values are float64: sums of whole numbers are exact up to 2**53.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

SLOTS = 8
"""Proposals that can be outstanding at once, plus one for the generation in force."""
LOSS = SLOTS
"""Index of the loss: each rank adds its mean loss times its share of the global batch."""
COMPUTE = SLOTS + 1
"""Index of the seconds that the ranks compute per step (:mod:`elastrain.elastic.group.heartbeat`)."""
LEARNING = SLOTS + 2
"""Index of the number of ranks that will still be receiving their state in the next step."""
STOP = SLOTS + 3
"""Index of the number of ranks that ask to end training with this step (:meth:`elastrain.Job.stop`)."""
COUNTED = SLOTS + 4
"""Index of the number of ranks whose script gives a count with its losses (:meth:`elastrain.Job.backward`)."""
COUNT = SLOTS + 5
"""Index of the sum of the counts."""
SAVE = SLOTS + 6
"""Index of the votes on a checkpoint that all ranks write together (:mod:`elastrain.elastic.checkpoint.rules`)."""
KEPT = SLOTS + 7
"""Index of the ranks that add their gradients to those of a step before (:mod:`elastrain.elastic.state.kept`)."""
SIZE = KEPT + 1


def encode(connected: Collection[int]) -> list[float]:
    """This rank's slots: 0 for each proposal (by number) that it is connected to, 1 elsewhere."""
    ready = {n % SLOTS for n in connected}
    return [0.0 if slot in ready else 1.0 for slot in range(SLOTS)]


@dataclass(frozen=True, slots=True)
class Summed:
    """The control vector of a step, summed over all ranks."""

    sums: Sequence[float]
    """Of length ``SIZE``."""
    connected: Collection[int]
    """The proposals that this rank had published."""
    of_model: Sequence[float] = ()
    """The sums of :meth:`elastrain.elastic.strategies.strategy.ElasticModule.votes`."""
    of_script: Sequence[float] = ()
    """Those of :meth:`elastrain.elastic.body.script_sums.ScriptSums.votes`."""
    of_batch: Sequence[float] = ()
    """Those of :meth:`elastrain.elastic.batching.ScriptsBatch.votes`."""
    of_shares: Sequence[float] = ()
    """Those of :meth:`elastrain.elastic.shares.EqualShares.votes`."""
    replicas: Sequence[int] = ()
    """By rank: the number of its replica, where they are compared in this step."""

    def agreed(self, current: int) -> int | None:
        """The newest proposal that every rank of generation ``current`` is connected to, or None."""
        candidates = [n for n in self.connected if current < n < current + SLOTS and self.sums[n % SLOTS] == 0.0]
        return max(candidates, default=None)
