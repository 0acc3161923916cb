"""The order of the data: a pure function of the step, independent of earlier world sizes.

Step ``s`` is batch ``s mod b`` of epoch ``s div b``, with ``b`` batches per epoch. An epoch is a permutation of the
data set, drawn from (seed, epoch) only. A global batch is a run of it, a rank's part is a run of the global batch, and
a micro-batch is a run of the part. A step can therefore be cut for any world size at any time, without the history of a
sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

ENDLESS = 2**62
"""Steps per epoch of an endless stream: it never leaves epoch 0."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A run of one global batch: the part of a rank, or one micro-batch of a part."""

    indices: tuple[int, ...]
    """Data set indices that count; empty if the world has more ranks than the batch has samples."""
    fetch: tuple[int, ...]
    """Indices to load: ``indices``, or one stand-in sample of weight 0 so that forward and backward can run."""
    weight: float
    """Share of the global batch, in samples. The weights of all runs of a batch add up to 1."""
    epoch: int
    start: int = 0
    """Position in the global batch of the first sample."""
    leaf: int = 0
    """With ``micro_batches``: number of the first logical micro-batch in this run."""
    leaves: int = 1
    """With ``micro_batches``: number of logical micro-batches of the whole global batch."""

    def stand_in(self) -> Slice:
        """The same samples with weight 0, for a learner."""
        return replace(self, indices=(), weight=0.0)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a data set of ``length`` samples (None: an endless stream) in batches of ``global_batch_size``.

    Raises ``ValueError`` naming the argument that is out of range.
    """

    length: int | None
    global_batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    """True: the last ``length mod global_batch_size`` samples of each epoch's permutation are left out of that epoch.
    False: they make a smaller last batch, weighted exactly."""
    micro_batch_size: int | None = None
    """A rank computes its part in micro-batches of this many samples (the last one may be smaller); None: at once."""
    micro_batches: int | None = None
    """Number of logical micro-batches of every global batch, at any world size. A rank's part is a run of whole ones.
    None: the batch is cut by samples."""

    @property
    def in_micro_batches(self) -> bool:
        """Whether a rank's part of a batch is cut further."""
        return self.micro_batches is not None or self.micro_batch_size is not None

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
            raise ValueError("shuffle: an endless stream cannot be shuffled")
        if self.micro_batches is not None and self.micro_batch_size is not None:
            raise ValueError("micro_batches: already says how the batch is cut; leave micro_batch_size out")

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch; :data:`ENDLESS` for an endless stream."""
        if self.length is None:
            return ENDLESS
        full, rest = divmod(self.length, self.global_batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def batch(self, step: int) -> Sequence[int]:
        """Data set indices of the global batch of ``step`` (from 0), in order."""
        epoch, k = divmod(step, self.steps_per_epoch)
        start, stop = k * self.global_batch_size, (k + 1) * self.global_batch_size
        if self.length is None:
            return range(start, stop)
        if not self.shuffle:
            return range(start, min(stop, self.length))
        run: list[int] = _permutation(self.length, self.seed, epoch)[start:stop].tolist()
        return run

    def slice(self, step: int, part: int, parts: int) -> Slice:
        """Part ``part`` of ``step``'s batch, cut into ``parts``.

        Lengths of the parts differ by at most one sample (with ``micro_batches``, by at most one micro-batch).
        """
        batch = self.batch(step)
        if self.micro_batches is None:
            return self._slice(step, batch, *run_of(len(batch), parts, part))
        leaves = min(self.micro_batches, len(batch))
        first, stop = run_of(leaves, parts, part)
        cut = self._slice(step, batch, _bound(len(batch), leaves, first), _bound(len(batch), leaves, stop))
        return replace(cut, leaf=first, leaves=leaves)

    def micro_slices(self, step: int, part: int, parts: int) -> tuple[Slice, ...]:
        """The micro-batches of a part, in order.

        At least one: an empty part has one stand-in of weight 0.
        """
        whole = self.slice(step, part, parts)
        if not whole.indices or (self.micro_batches is None and self.micro_batch_size is None):
            return (whole,)
        batch = self.batch(step)
        if self.micro_batch_size is not None:
            end = whole.start + len(whole.indices)
            bounds = [*range(whole.start, end, self.micro_batch_size), end]
            return tuple(self._slice(step, batch, a, b) for a, b in pairwise(bounds))
        first, stop = run_of(whole.leaves, parts, part)
        cut = ((leaf, _bound(len(batch), whole.leaves, leaf)) for leaf in range(first, stop + 1))
        return tuple(
            replace(self._slice(step, batch, a, b), leaf=leaf, leaves=whole.leaves)
            for (leaf, a), (_, b) in pairwise(cut)
        )

    def samples_before(self, step: int) -> int:
        """Samples consumed by all steps before ``step``, over all epochs."""
        epochs, k = divmod(step, self.steps_per_epoch)
        if self.length is None:
            return k * self.global_batch_size
        per_epoch = self.length
        if self.drop_last:
            per_epoch -= self.length % self.global_batch_size
        return epochs * per_epoch + min(k * self.global_batch_size, per_epoch)

    def _slice(self, step: int, batch: Sequence[int], start: int, stop: int) -> Slice:
        indices = tuple(batch[start:stop])
        return Slice(
            indices=indices,
            fetch=indices or (batch[0],),
            weight=len(indices) / len(batch),
            epoch=step // self.steps_per_epoch,
            start=start,
        )


def run_of(total: int, parts: int, index: int) -> tuple[int, int]:
    """``[start, stop)`` of run ``index`` of ``total`` things cut into ``parts`` runs; the longer runs come first."""
    return _bound(total, parts, index), _bound(total, parts, index + 1)


def _bound(total: int, parts: int, index: int) -> int:
    base, longer = divmod(total, parts)
    return index * base + min(index, longer)


@lru_cache(maxsize=2)
def _permutation(length: int, seed: int, epoch: int) -> np.ndarray:
    """The epoch's permutation. Philox is counter-based: (seed, epoch) is its whole state, on every machine."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), epoch], np.uint64)))
    permutation: np.ndarray = generator.permutation(length)
    return permutation
