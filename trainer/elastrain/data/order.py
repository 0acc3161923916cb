"""The order of the data: a pure function of the step, whatever the world did before.

Step ``s`` is batch ``s mod b`` of epoch ``s div b``, with ``b`` batches an epoch. An epoch is a permutation of the data
set drawn from (seed, epoch) only; a global batch is a run of it; a rank's part is a run of the global batch, and a
micro-batch a run of the part. So a step can be cut anew for any world, at any time, without a sampler's history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

ENDLESS = 2**62
"""Steps per epoch of a stream without an end: it never leaves epoch 0."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A run of one global batch: a rank's part of it, or one micro-batch of a part."""

    indices: tuple[int, ...]
    """Data set indices that count; empty where the world has more ranks than the batch has samples."""
    fetch: tuple[int, ...]
    """Indices to load: ``indices``, or one stand-in sample with weight 0 so that forward and backward can run."""
    weight: float
    """Its share of the global batch: ``len(indices) / batch_size``. The weights of all runs of a batch add up to 1."""
    batch_size: int
    """Samples of the whole global batch (the last batch of an epoch may be smaller than the others)."""
    epoch: int
    start: int = 0
    """Position in the global batch of the first sample."""

    def stand_in(self) -> Slice:
        """The same samples, of which none counts: for a rank that looks on."""
        return replace(self, indices=(), weight=0.0)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a data set of ``length`` samples (None: a stream without an end) in batches of
    ``global_batch_size``.
    """

    length: int | None
    global_batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    """True: the ``length mod global_batch_size`` samples that end each epoch's permutation are left out of that epoch.
    False: they make a smaller last batch, weighted exactly."""
    micro_batch_size: int | None = None
    """A rank computes its part in micro-batches of this many samples (the last one may be smaller); None: at once."""
    micro_batches: int | None = None
    """Every global batch is cut into this many logical micro-batches, whatever the world, and a rank's part is a run of
    whole ones; None: it is cut for the world."""

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise ValueError(f"dataset: has {self.length} samples, must have at least 1")
        for name in ("global_batch_size", "micro_batch_size", "micro_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value}: must be at least 1")
        if self.drop_last and self.length is not None and self.length < self.global_batch_size:
            raise ValueError(
                f"global_batch_size: {self.global_batch_size}: "
                f"with drop_last an epoch of {self.length} samples is empty"
            )
        if self.length is None and self.shuffle:
            raise ValueError("shuffle: a stream without an end cannot be shuffled; it comes in its own order")
        if self.micro_batches is not None and self.micro_batch_size is not None:
            raise ValueError("micro_batches: already says how the batch is cut; leave micro_batch_size out")

    @property
    def steps_per_epoch(self) -> int:
        if self.length is None:
            return ENDLESS
        full, rest = divmod(self.length, self.global_batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def batch(self, step: int) -> Sequence[int]:
        """Data set indices of the global batch of ``step`` (counted from 0), in order."""
        epoch, k = divmod(step, self.steps_per_epoch)
        start, stop = k * self.global_batch_size, (k + 1) * self.global_batch_size
        if self.length is None:
            return range(start, stop)
        if not self.shuffle:
            return range(start, min(stop, self.length))
        run: list[int] = _permutation(self.length, self.seed, epoch)[start:stop].tolist()
        return run

    def slice(self, step: int, rank: int, world_size: int) -> Slice:
        """Part of ``rank`` in a world of ``world_size``: runs whose lengths differ by at most one sample (with
        ``micro_batches``, by at most one micro-batch).
        """
        batch = self.batch(step)
        if self.micro_batches is None:
            return self._slice(step, batch, *run_of(len(batch), world_size, rank))
        first, stop, leaves = self._leaves(batch, rank, world_size)
        return self._slice(step, batch, _bound(len(batch), leaves, first), _bound(len(batch), leaves, stop))

    def micro_slices(self, step: int, rank: int, world_size: int) -> tuple[Slice, ...]:
        """The part of ``rank`` as the micro-batches that it computes one after the other; at least one, which is a
        stand-in of weight 0 where the part is empty.
        """
        return _micro_slices(self, step, rank, world_size)

    def _cut(self, step: int, rank: int, world_size: int) -> tuple[Slice, ...]:
        part = self.slice(step, rank, world_size)
        if not part.indices or (self.micro_batches is None and self.micro_batch_size is None):
            return (part,)
        batch = self.batch(step)
        if self.micro_batches is not None:
            first, stop, leaves = self._leaves(batch, rank, world_size)
            bounds = [_bound(len(batch), leaves, i) for i in range(first, stop + 1)]
        else:
            assert self.micro_batch_size is not None
            end = part.start + len(part.indices)
            bounds = [*range(part.start, end, self.micro_batch_size), end]
        return tuple(self._slice(step, batch, a, b) for a, b in pairwise(bounds))

    def leaves(self, step: int, rank: int, world_size: int) -> tuple[int, int, int]:
        """With ``micro_batches``: the logical micro-batches of ``rank`` are ``[first, stop)`` of ``count``.

        A batch of fewer samples than ``micro_batches`` has as many micro-batches as samples.
        """
        return self._leaves(self.batch(step), rank, world_size)

    def samples_before(self, step: int) -> int:
        """Samples consumed by the steps before ``step``, all epochs."""
        epochs, k = divmod(step, self.steps_per_epoch)
        if self.length is None:
            return k * self.global_batch_size
        per_epoch = self.length
        if self.drop_last:
            per_epoch -= self.length % self.global_batch_size
        return epochs * per_epoch + min(k * self.global_batch_size, per_epoch)

    def _leaves(self, batch: Sequence[int], rank: int, world_size: int) -> tuple[int, int, int]:
        assert self.micro_batches is not None
        count = min(self.micro_batches, len(batch))
        return *run_of(count, world_size, rank), count

    def _slice(self, step: int, batch: Sequence[int], start: int, stop: int) -> Slice:
        indices = tuple(batch[start:stop])
        return Slice(
            indices=indices,
            fetch=indices or (batch[0],),
            weight=len(indices) / len(batch),
            batch_size=len(batch),
            epoch=step // self.steps_per_epoch,
            start=start,
        )


def run_of(total: int, parts: int, index: int) -> tuple[int, int]:
    """``[start, stop)`` of run ``index`` where ``total`` things are cut into ``parts`` runs; the longer ones first."""
    return _bound(total, parts, index), _bound(total, parts, index + 1)


def _bound(total: int, parts: int, index: int) -> int:
    base, longer = divmod(total, parts)
    return index * base + min(index, longer)


@lru_cache(maxsize=32)
def _micro_slices(order: Order, step: int, rank: int, world_size: int) -> tuple[Slice, ...]:
    """Asked for once per micro-batch, by the loop and by the prefetching loader."""
    return order._cut(step, rank, world_size)


@lru_cache(maxsize=2)
def _permutation(length: int, seed: int, epoch: int) -> np.ndarray:
    """The epoch's permutation. Philox is counter-based: (seed, epoch) is its whole state, on every machine."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), epoch], np.uint64)))
    permutation: np.ndarray = generator.permutation(length)
    return permutation
