"""What determines the samples of each step, as plain values that ranks and checkpoints compare.

Every rank computes the samples of its part by itself. Ranks with other facts would cut other permutations: some samples
twice in a step, others never, and no sum of gradients shows it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from elastrain.data.order import ENDLESS, Order
from elastrain.data.sampling.permutation import VERSION

_MOST = 2**20
"""Indices of an epoch that are compared; of a longer one those at its ends."""


class OtherData(ValueError):
    """The samples of this rank's steps are not those of the job's."""


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """Of one :class:`~elastrain.data.order.Order`. Values are plain, so that a checkpoint may keep them."""

    samples: int | None
    """Of an epoch; None: endless."""
    global_batch_size: int
    seed: str
    shuffle: bool
    steps_per_epoch: int | None
    micro_batches: int | None
    """How a global batch is cut into parts. A job may go on with another number from a checkpoint."""
    first_step: int
    """As of :class:`Order`."""
    sampled: bool
    """Whether a sampler says which samples an epoch has."""
    permutation: int = VERSION
    """Version of its numbers."""
    epoch: int = 0
    """That has begun."""
    indices: str = ""
    """Digest of those that a sampler has in that epoch; empty: none has begun, or the other facts determine them."""

    @classmethod
    def of(cls, order: Order) -> OrderFacts:
        """Before an epoch of it has begun."""
        steps = order.steps_per_epoch
        return cls(
            samples=order.length,
            global_batch_size=order.global_batch_size,
            seed=f"{order.seed}",
            shuffle=order.shuffle,
            steps_per_epoch=None if steps == ENDLESS else steps,
            micro_batches=order.micro_batches,
            first_step=order.first_step,
            sampled=order.sampled,
        )

    def begin_epoch(self, order: Order, step: int) -> OrderFacts:
        """The same with the epoch of ``step``. Raises the errors of a sampler."""
        epoch, batches = order.where(step)
        return replace(self, epoch=epoch, indices=_digest_of(order, step - batches) if order.sampled else "")

    @property
    def digest(self) -> int:
        """A positive 63-bit number, equal for equal facts; also with an epoch that has begun."""
        raw = hashlib.blake2b(repr(self).encode(), digest_size=8).digest()
        return 1 + (int.from_bytes(raw, "little") >> 1) % (2**63 - 2)

    def apart(self, other: OrderFacts, *, resumed: bool = False) -> list[tuple[str, str]]:
        """What differs: this one's value and the other's. ``resumed``: the other is that of a checkpoint."""
        left_out = {"epoch"} | ({"micro_batches"} if resumed else set())
        if self.epoch != other.epoch or not (self.indices and other.indices):
            left_out.add("indices")
        names = [field.name for field in fields(self) if field.name not in left_out]
        values = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [(f"{name}={a}", f"{name}={b}") for name, a, b in values if a != b]


def differing(orders: Sequence[int], asked: Iterable[int], holders: Iterable[int]) -> list[int]:
    """Which of the ranks ``asked`` have other data than most of ``holders`` (of all that are asked, if none of these is
    among the holders). ``orders``: by rank, the digest of the facts; 0: not known. Pure.

    Of equally many the lower rank counts: all ranks come to the same result.
    """
    known = [rank for rank in asked if orders[rank]]
    decide = [rank for rank in known if rank in set(holders)] or known
    if not decide:
        return []
    (most, _), *_ = Counter(orders[rank] for rank in decide).most_common(1)
    return [rank for rank in known if orders[rank] != most]


def difference(mine: OrderFacts, other: OrderFacts, rank: int, peer: int) -> str:
    """The error of ``rank``, whose data is not that of ``peer``. Pure."""
    pairs = mine.apart(other)
    return (
        f"job.dataloader(): rank {rank} has {', '.join(a for a, _ in pairs)}; rank {peer} has "
        f"{', '.join(b for _, b in pairs)}: {SAME}"
    )


def check_resumed(mine: OrderFacts, saved: OrderFacts, step: int) -> None:
    """A job continues at ``step`` from a state that was saved with other facts. Raises :class:`OtherData`."""
    if pairs := mine.apart(saved, resumed=True):
        raise OtherData(
            f"job.dataloader(): this script has {', '.join(a for a, _ in pairs)}; the job's state of step {step} was "
            f"computed with {', '.join(b for _, b in pairs)}: its next steps would repeat samples and leave others "
            "out. Give the same data, batch and seed; or, if the change is meant, job.dataloader(..., "
            "accept_change=True), or another spec.checkpoint.path for a new training"
        )


SAME = (
    "all workers must give the same data set, global_batch_size, seed and sampler. A folder may be incomplete, or of "
    "another version, on that worker's node"
)


def _digest_of(order: Order, first: int) -> str:
    """Of the indices of the epoch that begins with step ``first``."""
    assert order.length is not None
    total, batches = hashlib.blake2b(digest_size=6), order.batch_sampler is not None
    half = _MOST // 2 // (order.global_batch_size if batches else 1)
    length = order.steps_per_epoch if batches else order.length
    for start, stop in ((0, min(length, half)), (max(half, length - half), length)):
        if order.sampler is not None:
            found = [order.sampler.indices(order.where(first)[0], start, stop)] if start < stop else []
        else:
            found = [order.batch(step) for step in range(first + start, first + stop)]
        for indices in found:
            total.update(len(indices).to_bytes(8, "little") + np.asarray(indices, np.int64).tobytes())
    return total.hexdigest()
