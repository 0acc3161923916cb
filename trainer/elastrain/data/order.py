"""The order of the data: a pure function of the step, whatever the world did before.

Step ``s`` is batch ``s mod b`` of epoch ``s div b``, with ``b`` batches an epoch. An epoch is a permutation of the data
set drawn from (seed, epoch) only; a global batch is a run of it; a rank's part is a run of the global batch. So a step
can be cut anew for any world, at any time, without a sampler's history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True, slots=True)
class Slice:
    """What one rank computes of one global batch."""

    indices: tuple[int, ...]
    """Data set indices that count; empty where the world has more ranks than the batch has samples."""
    fetch: tuple[int, ...]
    """Indices to load: ``indices``, or one stand-in sample with weight 0 so that forward and backward can run."""
    weight: float
    """This rank's share of the global batch: ``len(indices) / batch_size``. The ranks' weights add up to 1."""
    batch_size: int
    """Samples of the whole global batch (the last batch of an epoch may be smaller than the others)."""
    epoch: int


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a map-style data set of ``length`` samples in global batches of ``global_batch_size``."""

    length: int
    global_batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    """True: the ``length mod global_batch_size`` samples that end each epoch's permutation are left out of that epoch.
    False: they make a smaller last batch, weighted exactly."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"dataset: has {self.length} samples, must have at least 1")
        if self.global_batch_size < 1:
            raise ValueError(f"global_batch_size: {self.global_batch_size}: must be at least 1")
        if self.drop_last and self.length < self.global_batch_size:
            raise ValueError(
                f"global_batch_size: {self.global_batch_size}: "
                f"with drop_last an epoch of {self.length} samples is empty"
            )

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(self.length, self.global_batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def batch(self, step: int) -> Sequence[int]:
        """Data set indices of the global batch of ``step`` (counted from 0), in order."""
        epoch, k = divmod(step, self.steps_per_epoch)
        order = _permutation(self.length, self.seed, epoch) if self.shuffle else np.arange(self.length)
        run: list[int] = order[k * self.global_batch_size : (k + 1) * self.global_batch_size].tolist()
        return run

    def slice(self, step: int, rank: int, world_size: int) -> Slice:
        """Part of ``rank`` in a world of ``world_size``: runs whose lengths differ by at most one."""
        batch = self.batch(step)
        base, longer = divmod(len(batch), world_size)
        start = rank * base + min(rank, longer)
        indices = tuple(batch[start : start + base + (1 if rank < longer else 0)])
        return Slice(
            indices=indices,
            fetch=indices or (batch[0],),
            weight=len(indices) / len(batch),
            batch_size=len(batch),
            epoch=step // self.steps_per_epoch,
        )

    def samples_before(self, step: int) -> int:
        """Samples consumed by the steps before ``step``, all epochs."""
        epochs, k = divmod(step, self.steps_per_epoch)
        per_epoch = self.length
        if self.drop_last:
            per_epoch -= self.length % self.global_batch_size
        return epochs * per_epoch + min(k * self.global_batch_size, per_epoch)


@lru_cache(maxsize=2)
def _permutation(length: int, seed: int, epoch: int) -> np.ndarray:
    """The epoch's permutation. Philox is counter-based: (seed, epoch) is its whole state, on every machine."""
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), epoch]))
    permutation: np.ndarray = generator.permutation(length)
    return permutation
