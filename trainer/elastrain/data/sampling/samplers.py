"""Samplers: which samples an epoch has, as a function of (epoch, position).

A sampler of torch is an iterator: its next sample depends on what it has drawn before, so that every rank would have to
draw all samples of all ranks from the start. A :class:`Sampler` answers for any run of positions. Every rank asks for
its part of each global batch only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from elastrain.data.sampling.permutation import permutation, uniform


class Sampler(Protocol):
    """The samples of each epoch, in order: a function of (epoch, position), the same in every process."""

    def __len__(self) -> int:
        """Samples of an epoch, the same in every epoch."""

    def indices(self, epoch: int, start: int, stop: int) -> Sequence[int]:
        """The indices in the data set at positions ``start`` to ``stop`` (excluded) of ``epoch``; all from 0."""


class OwnShuffle(ABC):
    """A map-style data set that knows how it is shuffled: ``job.dataloader()`` uses its sampler where none is given."""

    @abstractmethod
    def shuffled(self, *, seed: int = 0, global_batch_size: int = 1) -> Sampler:
        """The sampler. ``seed``, ``global_batch_size``: those of the loader."""


class BatchSampler(Protocol):
    """The global batches of each epoch: a function of (epoch, number), the same in every process."""

    batch_size: int
    """Samples of the largest batch."""
    samples: int
    """Samples of an epoch. Progress is reported in them."""

    def __len__(self) -> int:
        """Batches of an epoch, the same in every epoch."""

    def batch(self, epoch: int, number: int) -> Sequence[int]:
        """The indices in the data set of global batch ``number`` of ``epoch``; at least one, at most ``batch_size``."""


def as_indices(values: Any, maker: object) -> list[int]:
    """``values`` as a list of Python's integers. Raises ``TypeError`` naming the ``maker`` for anything else."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{type(maker).__name__}: {values!r:.80}: must be a sequence of integers, indices of samples")
    found: list[int] = array.tolist()
    return found


class InOrder:
    """Every sample once an epoch, in the order of the data set. As torch's ``SequentialSampler``."""

    def __init__(self, population: int) -> None:
        """``population``: number of samples. Raises ``ValueError`` if it is not positive."""
        self._population = _positive("population", population)

    def __len__(self) -> int:
        return self._population

    def indices(self, epoch: int, start: int, stop: int) -> Sequence[int]:
        """As of :class:`Sampler`."""
        return range(start, stop)


class Shuffled:
    """Every sample once an epoch, in an order of its own in each epoch: memory of the run that is asked for.

    ``samples``: of an epoch. A smaller number than the population takes the first ones; with a larger one, every sample
    comes once before any comes twice. As torch's ``RandomSampler`` and ``SubsetRandomSampler``.
    """

    def __init__(self, population: int | Sequence[int], *, seed: int = 0, samples: int | None = None) -> None:
        """``population``: the indices, or their number. Raises ``ValueError`` for a number that is not positive."""
        self._chosen = None if isinstance(population, int) else np.asarray(as_indices(population, self), np.int64)
        self._population = _positive("population", population if isinstance(population, int) else len(population))
        self._samples = _positive("samples", self._population if samples is None else samples)
        self._seed = seed

    def __len__(self) -> int:
        return self._samples

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """As of :class:`Sampler`."""
        found: list[int] = []
        while start < stop:
            turn, at = divmod(start, self._population)
            end = min(stop - turn * self._population, self._population)
            values = permutation(self._population, self._seed, "order", epoch, turn)(np.arange(at, end))
            found += (values if self._chosen is None else self._chosen[values]).tolist()
            start += end - at
        return found


class Drawn:
    """Samples drawn with replacement, all with the same probability: torch's ``RandomSampler(replacement=True)``."""

    def __init__(self, population: int, *, seed: int = 0, samples: int | None = None) -> None:
        """``samples``: of an epoch; default: the population. Raises ``ValueError`` for numbers below 1."""
        self._population = _positive("population", population)
        self._samples = _positive("samples", population if samples is None else samples)
        self._seed = seed

    def __len__(self) -> int:
        return self._samples

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """As of :class:`Sampler`."""
        numbers: np.ndarray = uniform(start, stop, self._seed, "drawn", epoch) * self._population
        found: list[int] = np.minimum(numbers.astype(np.int64), self._population - 1).tolist()
        return found


class Weighted:
    """Samples drawn in proportion to their weights, as torch's ``WeightedRandomSampler``.

    Keeps 8 bytes for each sample of the data set; without replacement, 8 more for each sample of the last two epochs,
    which are drawn as a whole.
    """

    def __init__(self, weights: Any, samples: int, *, seed: int = 0, replacement: bool = True) -> None:
        """``weights``: one for each sample of the data set, none negative; they need not add up to 1.

        Raises ``ValueError`` naming the argument.
        """
        self._weights = np.asarray(weights, np.float64)
        if self._weights.ndim != 1 or not np.isfinite(self._weights).all() or (self._weights < 0).any():
            raise ValueError("weights: must be one finite number for each sample, none negative")
        positive = int(np.count_nonzero(self._weights))
        self._samples = _positive("samples", samples)
        if not positive or (not replacement and samples > positive):
            raise ValueError(f"samples: {samples}: only {positive} samples have a weight above 0")
        self._seed = seed
        self._sums = np.cumsum(self._weights) if replacement else None
        self._whole = lru_cache(maxsize=2)(self._epoch)

    def __len__(self) -> int:
        return self._samples

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """As of :class:`Sampler`."""
        if self._sums is None:
            run: list[int] = self._whole(epoch)[start:stop].tolist()
            return run
        numbers = uniform(start, stop, self._seed, "weighted", epoch) * self._sums[-1]
        last = int(np.flatnonzero(self._weights)[-1])  # rounding may lead past it
        found: list[int] = np.minimum(np.searchsorted(self._sums, numbers, side="right"), last).tolist()
        return found

    def _epoch(self, epoch: int) -> np.ndarray:
        """All samples of an epoch, one after the other by weight: the order of exponential times with these rates.

        (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.)
        """
        times = -np.log1p(-uniform(0, len(self._weights), self._seed, "weighted", epoch))
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(self._weights > 0, times / self._weights, np.inf)
        order: np.ndarray = np.argsort(times, kind="stable")[: self._samples]
        return order


class LengthBuckets:
    """Batches of samples of similar length, so that little is lost to padding.

    The samples are sorted by length and cut into ``buckets`` of about the same number of samples. A batch is drawn from
    one bucket. In each epoch the samples are shuffled in their bucket, and the batches among each other. With
    ``max_tokens`` a batch of a bucket has as many samples as fit if each were as long as the longest of the bucket;
    with ``batch_size``, all batches have that many. The last batch of each bucket can be smaller. Every sample comes
    once an epoch. Keeps 8 bytes for each sample.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        buckets: int = 16,
        seed: int = 0,
    ) -> None:
        """``lengths``: of the samples, in tokens. Sizes are those of the *global* batch.

        Raises ``ValueError`` naming the argument.
        """
        sizes = np.asarray(as_indices(lengths, self), np.int64)
        if (batch_size is None) == (max_tokens is None):
            raise ValueError("LengthBuckets: give either batch_size=… or max_tokens=…")
        if not sizes.size:
            raise ValueError("lengths: has 0 samples, must have at least 1")
        if max_tokens is not None and max_tokens < sizes.max():
            raise ValueError(f"max_tokens: {max_tokens}: the longest sample has {sizes.max()} tokens")
        self._seed = seed
        self._members = np.array_split(np.argsort(sizes, kind="stable"), min(_positive("buckets", buckets), sizes.size))
        if batch_size is not None:
            self._sizes = [_positive("batch_size", batch_size)] * len(self._members)
        else:
            self._sizes = [(max_tokens or 0) // max(1, int(sizes[bucket[-1]])) for bucket in self._members]
        counts = [-(-len(bucket) // size) for bucket, size in zip(self._members, self._sizes, strict=True)]
        self._starts = [0, *accumulate(counts)]
        """Of each bucket, the number of its first batch before batches are shuffled; and the number of all batches."""
        self.batch_size = max(min(size, len(bucket)) for size, bucket in zip(self._sizes, self._members, strict=True))
        self.samples = int(sizes.size)

    def __len__(self) -> int:
        return self._starts[-1]

    def batch(self, epoch: int, number: int) -> list[int]:
        """As of :class:`BatchSampler`."""
        unshuffled = int(permutation(len(self), self._seed, "batches", epoch)(np.array([number]))[0])
        bucket = bisect_right(self._starts, unshuffled) - 1
        members, size = self._members[bucket], self._sizes[bucket]
        start = (unshuffled - self._starts[bucket]) * size
        places = np.arange(start, min(start + size, len(members)))
        found: list[int] = members[permutation(len(members), self._seed, "bucket", epoch, bucket)(places)].tolist()
        return found


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}: {value}: must be at least 1")
    return value
