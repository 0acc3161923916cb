"""What the ranks have reported, as fields of the status: the same for the operator and for local mode. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

from elastrain.api import batch
from elastrain.api.records import Progress, Rescale
from elastrain_resource.job.batches import BatchStatus, LargerBatch, RankShareStatus
from elastrain_resource.job.status import LastRescale, ProgressStatus

_CENTURY = 100 * 365 * 86400.0


def progress_status(
    previous: ProgressStatus | None, step: int | None, report: Progress | None, now: datetime
) -> ProgressStatus | None:
    """``report`` as fields of the status; ``previous`` if the report is unchanged, so that time alone changes nothing.
    ``step``: the committed steps of ``previous``.

    The pace is that of undisturbed steps: future rescales and repairs are not included.
    """
    if report is None:
        return previous
    end = total_steps(report)
    same = previous is not None and (step, previous.of) == (report.step, end)
    pace = samples_per_second(report)
    if same and previous is not None and (previous.samples_per_second is None) == (pace is None):
        return previous
    return ProgressStatus(
        of=end,
        epoch=report.epoch,
        samples=report.samples,
        effective_samples=_effective_samples(report),
        samples_per_second=pace,
        loss=_loss(report),
        eta=_eta(report, now),
    )


def total_steps(report: Progress) -> int | None:
    """Committed steps at the end of training, as far as the script has said: that of its epochs, else of its loop."""
    known = [steps for steps in (report.goal, report.total_steps) if steps is not None]
    return max(known, default=None)


def samples_per_second(report: Progress) -> float | None:
    """Mean samples per committed step, over the smoothed time of an undisturbed step."""
    seconds = step_seconds(report)
    if not report.step or seconds is None:
        return None
    try:
        pace = report.samples / report.step / seconds
    except OverflowError:
        return None
    return round(pace, 1) if math.isfinite(pace) else None


def eta_seconds(report: Progress) -> float | None:
    """Seconds that the remaining steps take, at most a century; None: unknown."""
    seconds = step_seconds(report)
    end = total_steps(report)
    if end is None or seconds is None:
        return None
    left = min(max(0, end - report.step), 2**53)  # larger integers have no exact float
    return min(left * seconds, _CENTURY)


def step_seconds(report: Progress) -> float | None:
    """The time of an undisturbed step; None if the reported value cannot be a time."""
    seconds = report.step_seconds
    return seconds if seconds is not None and math.isfinite(seconds) and seconds > 0 else None


def _effective_samples(report: Progress) -> int | None:
    """Progress in samples of the script's batch; None: the job does not choose its batch, or no number was reported."""
    found = report.batch.effective_samples if report.batch is not None else None
    return round(found) if found is not None and math.isfinite(found) else None


def _loss(report: Progress) -> float | None:
    """Rounded, to keep the status small."""
    loss = report.loss
    return float(f"{loss:.6g}") if loss is not None and math.isfinite(loss) else None


def _eta(report: Progress, now: datetime) -> str | None:
    seconds = eta_seconds(report)
    if seconds is None or report.finished:
        return None
    return (now + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def rescale_status(rescale: Rescale) -> LastRescale:
    """One rescale; without its time, which no rank reports."""
    return LastRescale(
        from_=rescale.from_size,
        to=rescale.to_size,
        reason=rescale.reason,
        pause_seconds=rescale.pause_seconds,
        lost_steps=rescale.lost_steps,
        phases=rescale.phases,
    )


def batch_status(b: batch.BatchFigures) -> BatchStatus:
    """The batch that the ranks have chosen, to two digits."""
    noise = _two_digits(b.noise_scale) if b.noise_scale is not None and 0 < b.noise_scale < math.inf else None
    return BatchStatus(
        samples=b.samples,
        base=b.base,
        noise_scale=noise,
        larger=_larger(b.larger),
    )


def rank_shares(found: Iterable[batch.RankShare]) -> list[RankShareStatus]:
    """Those that are numbers, slowest first."""
    return [
        RankShareStatus(rank=one.rank, share=one.share, samples_per_second=one.samples_per_second, limit=one.limit)
        for one in found
        if math.isfinite(one.share) and math.isfinite(one.samples_per_second)
    ]


def _larger(found: batch.LargerBatch | None) -> LargerBatch | None:
    if found is None or not math.isfinite(found.gain):
        return None
    return LargerBatch(samples=found.samples, gain=_two_digits(found.gain))


def _two_digits(value: float) -> float:
    """A status that is written less often, and reads better."""
    return float(f"{value:.2g}")
