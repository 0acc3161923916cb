"""The training state as slices with holders: which rank sends which part of the state to a joiner.

With one replica per rank, every rank with the newest state holds every slice. A sharded strategy names, for each slice,
the ranks that hold it (:meth:`elastrain.elastic.strategies.strategy.Strategy.holders`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateSlice:
    """A run of bytes of one unit of the state."""

    unit: int
    """Number of the tensor, or of the portion (:mod:`elastrain.elastic.state.portions`), in the order of the state."""
    start: int
    """First byte."""
    nbytes: int


Holders = Callable[[StateSlice], Sequence[int]]
"""The ranks that hold a slice of the newest state; at least one, and the same answer on all ranks. Pure."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Which ranks send their state to which ones; the same value on all ranks."""

    sources: Sequence[int]
    """Ranks with the newest state. The first one sends the structure and the small tensors."""
    receivers: Sequence[int]
    holders: Holders | None = None
    """None: every source holds every slice."""

    def senders(self, slices: Sequence[StateSlice], receiver: int) -> list[int]:
        """For each slice the rank that sends it to rank ``receiver``. Pure.

        The holders of a slice take turns, and each receiver begins with another one.
        """
        turn = self.receivers.index(receiver)
        senders = []
        for number, part in enumerate(slices, start=turn):
            holders = self.sources if self.holders is None else self.holders(part)
            senders.append(holders[number % len(holders)])
        return senders
