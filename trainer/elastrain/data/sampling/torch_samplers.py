"""The samplers of torch, and any other iterable of indices, as functions of the position.

Torch's own samplers become those of :mod:`elastrain.data.sampling.samplers` that draw from the same distribution. Any
other sampler is iterated as an epoch begins, on each rank, under a seed of the epoch, and its indices are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

from elastrain.data.rng import Kept, Keys, seed_all
from elastrain.data.sampling.bounded import MOST, read
from elastrain.data.sampling.samplers import BatchSampler, Drawn, InOrder, Sampler, Shuffled, Weighted, as_indices


def by_position(sampler: Any, seed: int, most: int = MOST, epoch: int | None = None) -> Sampler:
    """``sampler`` as a :class:`elastrain.data.Sampler`: itself, or what draws as it does now, from ``seed``.

    ``most``: indices of an epoch. ``epoch``: that begins; None: whether it is deterministic is not known yet. A
    generator of a sampler of torch is not used. Raises ``TypeError`` for an object that is no sampler, ``ValueError``
    for one that cuts the data by rank, that is not deterministic or that does not end.
    """
    _refuse_by_rank("sampler", sampler)
    if type(sampler) is SequentialSampler:
        return InOrder(len(sampler))
    if type(sampler) is RandomSampler:
        kind = Drawn if sampler.replacement else Shuffled
        return kind(len(sampler.data_source), seed=seed, samples=sampler.num_samples)
    if type(sampler) is SubsetRandomSampler:
        return Shuffled(list(sampler.indices), seed=seed)
    if type(sampler) is WeightedRandomSampler:
        return Weighted(sampler.weights, sampler.num_samples, seed=seed, replacement=sampler.replacement)
    if callable(getattr(sampler, "indices", None)):
        found: Sampler = sampler
        return found
    if not hasattr(sampler, "__iter__"):
        raise TypeError(_NO_SAMPLER.format("sampler", type(sampler).__name__, "Sampler"))
    return ReplayedSampler(sampler, seed, most, epoch)


def batches_by_number(batch_sampler: Any, seed: int, most: int = MOST, epoch: int | None = None) -> BatchSampler:
    """``batch_sampler`` as a :class:`elastrain.data.BatchSampler`; its batches are the global ones. Raises as above."""
    _refuse_by_rank("batch_sampler", batch_sampler)
    if callable(getattr(batch_sampler, "batch", None)):
        found: BatchSampler = batch_sampler
        return found
    if not hasattr(batch_sampler, "__iter__"):
        raise TypeError(_NO_SAMPLER.format("batch_sampler", type(batch_sampler).__name__, "BatchSampler"))
    return ReplayedBatchSampler(batch_sampler, seed, most, epoch)


_NO_SAMPLER = "job.dataloader({}=…): {} is neither an iterable of indices nor has the methods of elastrain.data.{}"
_BY_RANK = (
    "job.dataloader({}=…): {} cuts the data for a fixed number of ranks; job.dataloader() cuts each global batch for "
    "the ranks of its step. Leave it out (shuffle, seed and drop_last are arguments of job.dataloader), or pass the "
    "sampler of the whole data set"
)


def _refuse_by_rank(name: str, sampler: Any) -> None:
    for one in _with_inner(sampler):
        if hasattr(one, "num_replicas") and hasattr(one, "rank"):
            raise ValueError(_BY_RANK.format(name, type(one).__name__))


def _with_inner(sampler: Any) -> tuple[Any, ...]:
    return (sampler, sampler.sampler) if hasattr(sampler, "sampler") else (sampler,)


class _Replay:
    """The epochs of a sampler of which only an iteration is known. Keeps the last two.

    Default generators, and a ``generator`` of the sampler, are seeded by (seed, epoch) before each iteration, and
    ``set_epoch(epoch)`` is called if it exists.
    """

    def __init__(self, sampler: Any, seed: int, read: Callable[[Any], list[Any]], epoch: int | None) -> None:
        """``read``: an iteration as a list of plain values. ``epoch``: that begins; None: raises ``ValueError`` if two
        iterations of epoch 0 differ."""
        self._sampler, self._keys, self._read = sampler, Keys(seed, "sampler"), read
        self._drawn = lru_cache(maxsize=2)(self._draw)
        self.begun = epoch or 0
        self.first = self._drawn(self.begun)
        """The epoch that begins."""
        if epoch is None and self.first != self._draw(0):
            raise ValueError(
                f"job.dataloader(): {type(sampler).__name__} is not deterministic: two iterations of epoch 0 differ, "
                "and so would those of two ranks. Draw from torch's default generator, or seed a generator of your own "
                "in set_epoch(epoch)"
            )

    def __len__(self) -> int:
        return len(self.first)

    def epoch(self, epoch: int) -> list[Any]:
        """The samples, or the batches, of ``epoch``. Raises ``ValueError`` if it has another number than that one."""
        drawn = self._drawn(epoch)
        if len(drawn) != len(self.first):
            raise ValueError(
                f"job.dataloader(): the length of {type(self._sampler).__name__} is {len(drawn)} in epoch {epoch} and "
                f"{len(self.first)} in epoch {self.begun}: it must be the same in all epochs of a loop, as it "
                "determines where each one ends"
            )
        return drawn

    def _draw(self, epoch: int) -> list[Any]:
        with Kept():
            seed_all(self._keys(epoch))
            for one in _with_inner(self._sampler):
                if isinstance(getattr(one, "generator", None), torch.Generator):
                    one.generator.manual_seed(self._keys(epoch))
                if callable(getattr(one, "set_epoch", None)):
                    one.set_epoch(epoch)
            return self._read(self._sampler)


class ReplayedSampler(_Replay):
    """A sampler that is iterated as a whole for each epoch: costs that time, and the memory, on every rank."""

    def __init__(self, sampler: Any, seed: int, most: int = MOST, epoch: int | None = None) -> None:
        """``most``: indices of an epoch. ``epoch``: as of :func:`by_position`. Raises ``ValueError`` if two iterations
        of an epoch differ, or if one does not end, ``TypeError`` if it yields no integers."""
        what = "job.dataloader(sampler=…)"
        super().__init__(sampler, seed, lambda drawn: as_indices(read(drawn, what, most=most), sampler), epoch)

    def indices(self, epoch: int, start: int, stop: int) -> Sequence[int]:
        """As of :class:`elastrain.data.Sampler`. Raises ``ValueError`` if the length of the epochs differs."""
        return self.epoch(epoch)[start:stop]


class ReplayedBatchSampler(_Replay):
    """The same for a sampler that yields batches: lists of indices."""

    def __init__(self, sampler: Any, seed: int, most: int = MOST, epoch: int | None = None) -> None:
        """As :class:`ReplayedSampler`, also what it raises."""

        def batches(drawn: Any) -> list[Any]:
            found = read(drawn, "job.dataloader(batch_sampler=…)", most=most, size=len)
            return [as_indices(batch, sampler) for batch in found]

        super().__init__(sampler, seed, batches, epoch)
        sizes = [len(batch) for batch in self.first]
        self.samples = sum(sizes)
        self.batch_size = max([int(getattr(sampler, "batch_size", None) or 0), *sizes])

    def batch(self, epoch: int, number: int) -> Sequence[int]:
        """As of :class:`elastrain.data.BatchSampler`. Raises ``ValueError`` as :meth:`ReplayedSampler.indices`."""
        found: Sequence[int] = self.epoch(epoch)[number]
        return found
