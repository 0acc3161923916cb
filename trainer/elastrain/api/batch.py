"""What rank 0 reports of the batch of a step, as a part of :class:`elastrain.api.records.Progress`."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class BatchRecord(BaseModel):
    """As records are: immutable, snake_case, tolerant of unknown fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class LargerBatch(BatchRecord):
    """The next larger batch of a job with ``spec.batch``."""

    samples: int
    """Twice those of the present step, or the largest that is permitted."""
    gain: float
    """Predicted gain of goodput at the present size, as a part of the present one; negative: it would be less."""


class BatchFigures(BatchRecord):
    """The batch of a job with ``spec.batch``."""

    samples: int
    """Samples of a step."""
    base: int | None = None
    """Samples of the script's batch: a step takes a whole multiple. None: not known yet."""
    micro_batch: int | None = None
    """Most samples that a rank computes at once. None: not known yet."""
    noise_scale: float | None = None
    """In samples; None: not measured yet."""
    effective_samples: float | None = None
    """Progress: the samples of all committed steps, each counted by the efficiency of its step."""
    larger: LargerBatch | None = None
    """None: not predicted yet, or the present batch is the largest."""
    step_seconds: float | None = None
    """Smoothed duration of an undisturbed step of so many samples at the present size; None: not measured yet."""


class ShareLimit(StrEnum):
    """What keeps a share from growing with the speed of its rank."""

    MAX_SHARE = "MaxShare"
    """``spec.maxShare``."""
    LOSS = "Loss"
    """A rank was lost just after its share had grown beyond this one, perhaps for want of memory."""


class RankShare(BatchRecord):
    """The part of the batch that a rank computes, with ``spec.shares: Measured``."""

    rank: int
    share: float
    """In equal shares: 1 is an equal one."""
    samples_per_second: float
    """While it computes; as of the last decision about the shares."""
    limit: str | None = None
    """What bounds it: a :class:`ShareLimit`, or a newer version's. Absent: nothing does."""
