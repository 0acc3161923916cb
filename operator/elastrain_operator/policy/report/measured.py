"""What a job has measured of itself: the time of a step by size, placement and batch, and its noise. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from elastrain.api.job import MeasuredSize
from elastrain.api.job.status import BatchStatus
from elastrain.api.records import Progress
from elastrain_operator.model import Coordination, Pod
from elastrain_operator.policy.report.pace import step_seconds

KEPT = 12
"""Most sizes in the status."""
CHANGED = 0.05
"""A known size is written again if its time differs by more than this part."""
NOISE_CHANGED = 0.2
"""The noise scale is written again if it differs by more than this part."""
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
    noise = report.batch.noise_scale
    noise = float(f"{noise:.2g}") if noise is not None and 0 < noise < math.inf else None
    new = BatchStatus(samples=report.batch.samples, base=report.batch.base, noise_scale=noise)
    if old is None or (old.samples, old.base) != (new.samples, new.base) or old.noise_scale is None or noise is None:
        return new
    return old if abs(old.noise_scale - noise) <= NOISE_CHANGED * noise else new


def _is_settled(report: Progress) -> bool:
    began = next((r.step for r in report.rescales if r.generation == report.generation), 0)
    return report.step - began >= SETTLED_STEPS
