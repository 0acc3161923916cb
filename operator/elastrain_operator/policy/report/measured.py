"""What a job has measured of itself: the time of a step by size, placement and batch, and its noise. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from elastrain.api import batch
from elastrain.api.job import MeasuredSize
from elastrain.api.job.status import BatchStatus, LargerBatch
from elastrain.api.records import Progress
from elastrain_operator.facts import Coordination, Pod
from elastrain_operator.policy.report.pace import step_seconds

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
