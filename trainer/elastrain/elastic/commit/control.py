"""The control vector: the values that ranks must agree on, summed together with the step's last bucket of gradients.

Every rank reads the same sums, and all take the same decision at the same step, without an additional wait. Slot
``number % SLOTS`` counts the ranks that are *not* connected to generation ``number``: zero is exact in every
floating-point type, for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

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
COUNT_LOW, COUNT_HIGH = SLOTS + 5, SLOTS + 6
"""Indices of the sum of the counts, in two digits: float32 adds those of 4,096 ranks exactly, up to 2**36 in all."""
SAVE = SLOTS + 7
"""Index of the votes on a checkpoint that all ranks write together (:mod:`elastrain.elastic.checkpoint.rules`)."""
KEPT = SLOTS + 8
"""Index of the ranks that add their gradients to those of a step before (:mod:`elastrain.elastic.state.kept`)."""
SIZE = KEPT + 1

BATCH, NOISE = SIZE, SIZE + 1
"""Indices of what rank 0 decides with ``spec.batch``: the batches of the script in a step, and the noise scale. 0: as
before."""
SQUARES = SIZE + 2
"""Index of the ranks' values of :meth:`elastrain.elastic.small_gradient.SmallGradient.votes`."""
WITH_BATCH = SQUARES + 3
"""Size with ``spec.batch``; other jobs have no such slots."""

_DIGIT = 1 << 12


def encode(connected: Collection[int]) -> list[float]:
    """This rank's slots: 0 for each proposal (by number) that it is connected to, 1 elsewhere."""
    ready = {n % SLOTS for n in connected}
    return [0.0 if slot in ready else 1.0 for slot in range(SLOTS)]


def digits(count: int) -> tuple[float, float]:
    """The values of ``COUNT_LOW`` and ``COUNT_HIGH`` for this rank's count."""
    high, low = divmod(count, _DIGIT)
    return float(low), float(high)


def in_words(number: int) -> list[float]:
    """A number of 63 bits as values that every floating-point type holds exactly."""
    return [float(number >> shift & 0xFFFF) for shift in range(0, 64, 16)]


def of_words(words: Sequence[float]) -> int:
    """The reverse of :func:`in_words`."""
    return sum(int(word) << 16 * place for place, word in enumerate(words))


@dataclass(frozen=True, slots=True)
class Summed:
    """The control vector of a step, summed over all ranks."""

    sums: Sequence[float]
    """Of length ``SIZE``."""
    connected: Collection[int]
    """The proposals that this rank had published."""
    products: tuple[float, float, float] | None = None
    """Of a sharded model, over all gradients: the sums of their squares, of their products with those that are kept
    from a step before, and of the squares of these. They travel beside the vector."""
    copying: int = 0
    """The same: the number of ranks that had not received all of the newest snapshot when they voted."""
    replicas: Sequence[int] = ()
    """By rank: the number of its replica, where they are compared in this step."""

    def with_votes(self, *products: float, copying: float) -> Summed:
        """The same vector with the sums that came with it: the three of :attr:`products`, and :attr:`copying`."""
        squares, mixed, kept = products
        return replace(self, products=(squares, mixed, kept), copying=round(copying))

    def agreed(self, current: int) -> int | None:
        """The newest proposal that every rank of generation ``current`` is connected to, or None."""
        candidates = [n for n in self.connected if current < n < current + SLOTS and self.sums[n % SLOTS] == 0.0]
        return max(candidates, default=None)

    @property
    def count(self) -> int:
        """The sum of the counts of all ranks."""
        return int(self.sums[COUNT_HIGH]) * _DIGIT + int(self.sums[COUNT_LOW])
