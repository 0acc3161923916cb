"""The order of the data: a pure function of the step, independent of earlier world sizes.

Step ``s`` is batch ``s mod b`` of epoch ``s div b``, with ``b`` batches per epoch, as long as ``b`` stays. An epoch is
a permutation of the data set, keyed by (seed, epoch), or what a sampler says for (epoch, position). A global batch is a
run of it, a rank's part is a run of the global batch, and a micro-batch is a run of the part. A step can therefore be
cut for any world size at any time, and a rank computes the indices of its own part only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from elastrain.data.sampling.permutation import permutation
from elastrain.data.sampling.samplers import BatchSampler, Sampler, as_indices
from elastrain.data.share import Share

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
    weights: tuple[int, ...] = ()
    """Of the parts, as of :class:`elastrain.data.share.Share`."""

    def stand_in(self) -> Slice:
        """The same samples with weight 0, for a learner."""
        return replace(self, indices=(), weight=0.0)


@dataclass(frozen=True, slots=True)
class _Batch:
    """One global batch."""

    epoch: int
    size: int
    indices: Callable[[int, int], Sequence[int]]
    """``indices(start, stop)``: of the samples at these positions in the batch."""

    def slice(self, start: int, stop: int) -> Slice:
        indices = tuple(self.indices(start, stop)) if start < stop else ()
        fetch = indices or tuple(self.indices(0, 1))
        return Slice(indices=indices, fetch=fetch, weight=len(indices) / self.size, epoch=self.epoch, start=start)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of epochs of ``length`` samples (None: an endless stream) in batches of ``global_batch_size``.

    Raises ``ValueError`` naming the argument that is out of range.
    """

    length: int | None
    global_batch_size: int
    """With a batch sampler: samples of the largest batch."""
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
    even: bool = field(default=False, compare=False)
    """All ranks compute equally many micro-batches, some perhaps stand-ins: a forward of a sharded model needs several
    ranks, and a backward all. It is no part of the order: a job may resume with whole models."""
    accept_change: bool = field(default=False, compare=False)
    """A job may go on in this order from a checkpoint of another one."""
    sampler: Sampler | None = field(default=None, compare=False)
    """Says which samples an epoch has; None: all samples of the data set."""
    batch_sampler: BatchSampler | None = field(default=None, compare=False)
    """Says which samples each global batch has."""
    first_step: int = 0
    """Where these data begin, behind loops over data whose epochs have another number of steps."""
    first_epoch: int = 0
    """Epochs of the job before that step."""
    first_sample: int = 0
    """Samples of the job before that step."""

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
        if self.batch_sampler is not None:
            return len(self.batch_sampler)
        if self.length is None:
            return ENDLESS
        full, rest = divmod(self.length, self.global_batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def where(self, step: int) -> tuple[int, int]:
        """The epoch of ``step``, and how many batches of that epoch come before it."""
        epochs, batches = divmod(step - self.first_step, self.steps_per_epoch)
        return self.first_epoch + epochs, batches

    def left(self, step: int) -> int:
        """Batches of the epoch of ``step`` from that step on."""
        return self.steps_per_epoch - self.where(step)[1]

    def end_of(self, epochs: int) -> int:
        """Steps at the end of the first ``epochs`` epochs of the job."""
        return self.first_step + (epochs - self.first_epoch) * self.steps_per_epoch

    def behind(self, before: Order | None, end: int) -> Order:
        """This order behind loops in the order ``before``, which end at step ``end``.

        The job's epochs go on. If these are of another number of steps, the next one begins at ``end``.
        """
        if before is None:
            return self
        first = before.first_step, before.first_epoch, before.first_sample
        if self.steps_per_epoch != before.steps_per_epoch:
            first = end, before.where(end - 1)[0] + 1, before.samples_before(end)
        return replace(self, first_step=first[0], first_epoch=first[1], first_sample=first[2])

    @property
    def sampled(self) -> bool:
        """Whether a sampler determines the samples of an epoch, which can then lack some and repeat others."""
        return self.sampler is not None or self.batch_sampler is not None

    def batch(self, step: int, span: int = 1) -> Sequence[int]:
        """Data set indices of the global batch of ``step`` (from 0), in order. Raises as :meth:`slice`."""
        batch = self._batch(step, span)
        return batch.indices(0, batch.size)

    def slice(self, step: int, part: int, parts: int, weights: tuple[int, ...] = (), *, span: int = 1) -> Slice:
        """Part ``part`` of ``step``'s batch, cut into ``parts``. ``span``: the batch is that of so many steps, of one
        epoch.

        Lengths of the parts differ by at most one sample (with ``micro_batches``, by at most one micro-batch), or are
        in proportion to ``weights`` up to that. Raises ``TypeError`` or ``ValueError`` naming a sampler that breaks its
        contract.
        """
        return self._slice(self._batch(step, span), part, parts, weights)

    def micro_slices(
        self,
        step: int,
        part: int,
        parts: int,
        weights: tuple[int, ...] = (),
        *,
        span: int = 1,
        limit: int | None = None,
    ) -> tuple[Slice, ...]:
        """The micro-batches of a part, in order, of at most ``limit`` samples. Raises as :meth:`slice`.

        At least one: an empty part has one stand-in of weight 0.
        """
        batch, share = self._batch(step, span), Share(part, parts, weights)
        if not self.even:
            return self._cut(batch, share, limit)
        cut = self._cut_evenly(batch, share) if weights else self._cut(batch, share)
        return cut + (batch.slice(0, 0),) * (self._most_cuts(batch, share) - len(cut))

    def _most_cuts(self, batch: _Batch, share: Share) -> int:
        """Micro-batches that each part has with :attr:`even`: enough for the longest of them."""
        if not share.weights:
            return len(self._cut(batch, share._replace(part=0)))
        things = batch.size if self.micro_batches is None else min(self.micro_batches, batch.size)
        longest = max(things * max(share.weights) // sum(share.weights), things // share.parts) + 1
        return longest if self.micro_batches else -(-longest // (self.micro_batch_size or longest))

    def _cut_evenly(self, batch: _Batch, share: Share) -> tuple[Slice, ...]:
        """A part with weights in equal micro-batches: a short part has as many as a long one, and smaller ones."""
        whole, count = self._slice(batch, *share), self._most_cuts(batch, share)
        if self.micro_batches is not None or not whole.indices:
            return self._cut(batch, share)
        bounds = [whole.start + _bound(len(whole.indices), count, cut) for cut in range(count + 1)]
        return tuple(_run(whole, a, b, batch.size) for a, b in pairwise(bounds) if a < b)

    def _cut(self, batch: _Batch, share: Share, limit: int | None = None) -> tuple[Slice, ...]:
        whole = self._slice(batch, *share)
        most = min((n for n in (self.micro_batch_size, limit) if n is not None), default=None)
        if not whole.indices or (self.micro_batches is None and most is None):
            return (whole,)
        if most is not None:
            end = whole.start + len(whole.indices)
            bounds = [*range(whole.start, end, most), end]
            return tuple(_run(whole, a, b, batch.size) for a, b in pairwise(bounds))
        first, stop = run_of(whole.leaves, share.parts, share.part, share.weights)
        cut = ((leaf, _bound(batch.size, whole.leaves, leaf)) for leaf in range(first, stop + 1))
        return tuple(replace(_run(whole, a, b, batch.size), leaf=leaf) for (leaf, a), (_, b) in pairwise(cut))

    def samples_before(self, step: int) -> int:
        """Samples consumed by all steps before ``step``, over all epochs.

        Within an epoch of a batch sampler, whose batches differ in size, it is in proportion to the steps.
        """
        epochs, k = divmod(step - self.first_step, self.steps_per_epoch)
        if self.length is None:
            return self.first_sample + k * self.global_batch_size
        if self.batch_sampler is not None:
            return self.first_sample + epochs * self.length + self.length * k // len(self.batch_sampler)
        per_epoch = self.length
        if self.drop_last:
            per_epoch -= self.length % self.global_batch_size
        return self.first_sample + epochs * per_epoch + min(k * self.global_batch_size, per_epoch)

    def _batch(self, step: int, span: int = 1) -> _Batch:
        epoch, k = self.where(step)
        if self.batch_sampler is not None:
            return self._sampled_batch(epoch, k, span)
        first, size = k * self.global_batch_size, span * self.global_batch_size
        if self.length is not None:
            size = min(size, self.length - first)
        return _Batch(epoch, size, lambda start, stop: self._indices(epoch, first + start, first + stop))

    def _sampled_batch(self, epoch: int, first: int, span: int) -> _Batch:
        assert self.batch_sampler is not None
        all_found: list[int] = []
        for k in range(first, first + span):
            found = as_indices(self.batch_sampler.batch(epoch, k), self.batch_sampler)
            if not 1 <= len(found) <= self.global_batch_size:
                raise ValueError(
                    f"batch_sampler: {type(self.batch_sampler).__name__}.batch({epoch}, {k}) has {len(found)} samples, "
                    f"must have 1 to {self.global_batch_size}, its batch_size"
                )
            all_found += found
        return _Batch(epoch, len(all_found), lambda start, stop: all_found[start:stop])

    def _indices(self, epoch: int, start: int, stop: int) -> Sequence[int]:
        """The samples at positions ``start`` to ``stop`` of ``epoch``."""
        if self.sampler is not None:
            found = as_indices(self.sampler.indices(epoch, start, stop), self.sampler)
            if len(found) != stop - start:
                raise ValueError(
                    f"sampler: {type(self.sampler).__name__}.indices({epoch}, {start}, {stop}) has {len(found)} "
                    f"indices, must have {stop - start}"
                )
            return found
        if not self.shuffle or self.length is None:
            return range(start, stop)
        run: list[int] = permutation(self.length, self.seed, "order", epoch, 0)(np.arange(start, stop)).tolist()
        return run

    def _slice(self, batch: _Batch, part: int, parts: int, weights: tuple[int, ...]) -> Slice:
        if self.micro_batches is None:
            return batch.slice(*run_of(batch.size, parts, part, weights))
        leaves = min(self.micro_batches, batch.size)
        first, stop = run_of(leaves, parts, part, weights)
        cut = batch.slice(_bound(batch.size, leaves, first), _bound(batch.size, leaves, stop))
        return replace(cut, leaf=first, leaves=leaves, weights=weights)


def _run(whole: Slice, start: int, stop: int, size: int) -> Slice:
    """The samples ``start`` to ``stop`` of a batch of ``size``, of which ``whole`` has them."""
    indices = whole.indices[start - whole.start : stop - whole.start]
    return replace(whole, indices=indices, fetch=indices, weight=len(indices) / size, start=start)


def run_of(total: int, parts: int, index: int, weights: tuple[int, ...] = ()) -> tuple[int, int]:
    """``[start, stop)`` of run ``index`` of ``total`` things cut into ``parts`` runs; the longer runs come first.

    With ``weights``: runs in proportion to them, of at least one thing; equal ones if there are fewer things than runs.
    """
    if not weights or total < parts:
        return _bound(total, parts, index), _bound(total, parts, index + 1)
    start, stop, passed, whole = 0, 0, 0, sum(weights)
    for run, weight in enumerate(weights[: index + 1]):
        start, passed = stop, passed + weight
        stop = min(max(start + 1, (2 * total * passed + whole) // (2 * whole)), total - (parts - run - 1))
    return start, stop


def _bound(total: int, parts: int, index: int) -> int:
    base, longer = divmod(total, parts)
    return index * base + min(index, longer)
