"""What travels with the gradients: which proposals a rank is connected to, its share of the loss, if it would stop.

The control vector is summed over the ranks together with the step's last bucket of gradients, so every rank reads the
same sums and all take the same decision at the same step, and nobody waits a moment longer for it. Slot
``number % SLOTS`` counts the ranks that are *not* connected to generation ``number``: a zero is exact in every
floating-point type, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

SLOTS = 8
"""Proposals that can be outstanding at once, plus one for the generation in force."""
LOSS = SLOTS
"""Index of the loss: each rank adds its mean loss times its share of the global batch."""
COMPUTE = SLOTS + 1
"""Index of the seconds that the ranks compute per step (:mod:`elastrain.elastic.membership.heartbeat`)."""
LOOKING = SLOTS + 2
"""Index of the number of ranks that are still getting their state: all of them go on as in this step then."""
STOP = SLOTS + 3
"""Index of how many ranks ask that training ends with this step (:meth:`elastrain.Job.stop`)."""
SIZE = STOP + 1


def encode(connected: Collection[int]) -> list[float]:
    """This rank's slots: 0 for each proposal (by number) that it has connected to, 1 elsewhere."""
    ready = {n % SLOTS for n in connected}
    return [0.0 if slot in ready else 1.0 for slot in range(SLOTS)]


@dataclass(frozen=True, slots=True)
class Summed:
    """The control vector of a step, of all ranks."""

    sums: Sequence[float]
    connected: Collection[int]
    """The proposals that this rank had put into it."""

    def agreed(self, current: int) -> int | None:
        """The newest proposal that every rank of generation ``current`` is connected to, or None."""
        candidates = [n for n in self.connected if current < n < current + SLOTS and self.sums[n % SLOTS] == 0.0]
        return max(candidates, default=None)
