"""The batch of a job and the ranks' shares of it, as the status has them. Written by the operator only."""

from __future__ import annotations

from elastrain.api.base import StatusModel


class LargerBatch(StatusModel):
    """The next larger batch, and what it promises."""

    samples: int
    """Twice those of the present step, or the largest that `spec.batch.max` permits."""
    gain: float
    """Predicted gain of goodput at the present size, as a part of the present goodput. The ranks change for more than
    0.07."""


class BatchStatus(StatusModel):
    """The batch that the ranks have chosen within ``spec.batch``."""

    samples: int
    """Samples of a step, over all ranks."""
    base: int | None = None
    """Samples of the script's batch, of which a step takes a whole multiple."""
    noise_scale: float | None = None
    """Noise scale of the gradients in samples, to two digits: well below it, a larger batch costs little progress.
    Absent: not measured yet."""
    larger: LargerBatch | None = None
    """The next larger batch. Absent: not predicted yet, or the present one is the largest."""


class RankShareStatus(StatusModel):
    """The part of the batch that a rank computes, with ``spec.shares: Measured``."""

    rank: int
    """Global rank."""
    share: float
    """Its part, in equal shares: 1 is an equal one."""
    samples_per_second: float
    """Its speed while it computes, when the shares were last changed."""
    limit: str | None = None
    """What bounds its share. MaxShare: `spec.maxShare`. Loss: a rank was lost just after its share had grown beyond
    this one, perhaps for want of memory. Absent: nothing does."""
