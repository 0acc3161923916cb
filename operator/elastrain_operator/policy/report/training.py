"""Training as seen from outside: generation, rescales, pace and progress, measured sizes and batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

from elastrain.api import batch
from elastrain.api.job import GenerationStatus, LastRescale, MeasuredSize, ProgressStatus
from elastrain.api.job.status import BatchStatus, LargerBatch
from elastrain.api.records import Progress, Rescale
from elastrain_operator.facts import Coordination, Pod


def in_force(previous: GenerationStatus | None, seen: Coordination) -> tuple[GenerationStatus | None, int]:
    """The generation that trains, and the number of its live workers.

    A proposed generation is in force as soon as one of its members reports that it has adopted it (ranks adopt it
    together; the other reports follow). Until then the generation before (``previous``, from the status) is.
    """
    newest = seen.generation
    if newest is None:
        return previous, 0
    ids = {m.id for m in newest.members}
    alive = [m for m in seen.members if m.id in ids]
    if any(m.generation >= newest.number for m in alive) or not newest.members:
        return GenerationStatus(number=newest.number, size=len(newest.members), reason=newest.reason), len(alive)
    if previous is None:
        return None, 0
    placed = {m.id for m in seen.earlier(previous.number)}
    return previous, sum(m.id in placed or m.generation == previous.number for m in seen.members)


def last_rescale(previous: LastRescale | None, seen: Coordination, now: datetime) -> LastRescale | None:
    """The newest rescale that the trainer measured, with the time of the operator's first observation.

    The start (from 0 ranks) does not count.
    """
    measured = [r for r in seen.progress.rescales if r.from_size > 0] if seen.progress else []
    if not measured:
        return previous
    newest = _as_status(measured[-1])
    if previous and newest == previous.model_copy(update={"time": None}):
        return previous
    return newest.model_copy(update={"time": now.isoformat()})


def _as_status(rescale: Rescale) -> LastRescale:
    return LastRescale(
        from_=rescale.from_size,
        to=rescale.to_size,
        reason=rescale.reason,
        pause_seconds=rescale.pause_seconds,
        lost_steps=rescale.lost_steps,
        phases=rescale.phases,
    )


_CENTURY = 100 * 365 * 86400.0


def progress_status(previous: ProgressStatus | None, report: Progress | None, now: datetime) -> ProgressStatus | None:
    """``report`` as fields of the status; ``previous`` if the report is unchanged, so that time alone changes nothing.

    The pace is that of undisturbed steps: future rescales and repairs are not included.
    """
    if report is None:
        return previous
    same = previous is not None and (previous.step, previous.of) == (report.step, report.total_steps)
    pace = samples_per_second(report)
    if same and previous is not None and (previous.samples_per_second is None) == (pace is None):
        return previous
    return ProgressStatus(
        step=report.step,
        of=report.total_steps,
        epoch=report.epoch,
        samples=report.samples,
        effective_samples=_effective_samples(report),
        samples_per_second=pace,
        loss=_loss(report),
        eta=_eta(report, now),
    )


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
    if report.total_steps is None or seconds is None:
        return None
    left = min(max(0, report.total_steps - report.step), 2**53)  # larger integers have no exact float
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


KEPT = 12
"""Most sizes in the status."""
CHANGED = 0.05
"""A known size is written again if its time differs by more than this part."""
NOISE_CHANGED = 0.2
"""The noise scale is written again if it differs by more than this part."""
GAIN_CHANGED = 0.03
"""The gain of the next larger batch is written again if it differs by more than this."""
SETTLED_STEPS = 3
"""Steps of a generation before its step time counts: the first ones are slow."""


def measured_sizes(old: list[MeasuredSize], etcd: Coordination, pods: Iterable[Pod]) -> list[MeasuredSize]:
    """``old`` with the generation's step time; ``old`` itself if that is not known yet, or nothing has changed."""
    report, generation = etcd.progress, etcd.generation
    if report is None or generation is None or report.generation != generation.number:
        return old
    seconds, batch = step_seconds(report), None
    if report.batch is not None:
        seconds, batch = report.batch.step_seconds, report.batch.samples
    members = {m.worker for m in generation.members}
    nodes = [p.node for p in pods if p.name in members]
    if seconds is None or not _is_settled(report) or len(nodes) != len(members) or not members or not all(nodes):
        return old
    rounded = float(f"{seconds:.4g}")
    new = MeasuredSize(workers=len(members), nodes=len(set(nodes)), step_seconds=rounded, batch=batch)
    known = next((m for m in old if (m.workers, m.nodes, m.batch) == (new.workers, new.nodes, new.batch)), None)
    if known is not None and abs(known.step_seconds - seconds) <= CHANGED * known.step_seconds:
        return old
    return [*(m for m in old if m is not known), new][-KEPT:]


def batch_status(old: BatchStatus | None, etcd: Coordination) -> BatchStatus | None:
    """The batch that the ranks have chosen; ``old`` as long as nothing that matters has changed."""
    report = etcd.progress
    if report is None:
        return old
    if report.batch is None:
        return None
    b = report.batch
    noise = _two_digits(b.noise_scale) if b.noise_scale is not None and 0 < b.noise_scale < math.inf else None
    new = BatchStatus(
        samples=b.samples,
        base=b.base,
        micro_batch=b.micro_batch,
        noise_scale=noise,
        efficiency=None if noise is None or b.efficiency is None else _two_digits(b.efficiency),
        larger=_larger(b.larger),
    )
    return new if old is None or _differs(old, new) else old


def _larger(found: batch.LargerBatch | None) -> LargerBatch | None:
    if found is None or not math.isfinite(found.gain):
        return None
    return LargerBatch(samples=found.samples, gain=_two_digits(found.gain))


def _two_digits(value: float) -> float:
    """A status that is written less often, and reads better."""
    return float(f"{value:.2g}")


def _differs(old: BatchStatus, new: BatchStatus) -> bool:
    """Whether more has changed than the noise of measurements."""
    if _sizes(old) != _sizes(new):
        return True
    if old.noise_scale is None or new.noise_scale is None:
        return old != new
    if old.larger and new.larger and abs(old.larger.gain - new.larger.gain) > GAIN_CHANGED:
        return True
    return abs(old.noise_scale - new.noise_scale) > NOISE_CHANGED * new.noise_scale


def _sizes(batch: BatchStatus) -> tuple[int | None, ...]:
    return (batch.samples, batch.base, batch.micro_batch, batch.larger.samples if batch.larger else None)


def _is_settled(report: Progress) -> bool:
    began = next((r.step for r in report.rescales if r.generation == report.generation), 0)
    return report.step - began >= SETTLED_STEPS
