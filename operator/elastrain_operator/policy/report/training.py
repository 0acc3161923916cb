"""Training as seen from outside: generation, rescales, measured sizes and batches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from elastrain.api.records import Member, Progress
from elastrain_operator.facts import Coordination, Pod
from elastrain_resource.job import GenerationStatus, LastRescale, MeasuredSize, reported
from elastrain_resource.job.batches import BatchStatus, RankShareStatus


def in_force(previous: GenerationStatus | None, seen: Coordination) -> tuple[GenerationStatus | None, tuple[str, ...]]:
    """The generation that trains, and its live workers (pod names, one for each member).

    A proposed generation is in force as soon as one of its members reports that it has adopted it (ranks adopt it
    together; the other reports follow). Until then the generation before (``previous``, from the status) is.
    """
    newest = seen.generation
    if newest is None:
        return previous, ()
    ids = {m.id for m in newest.members}
    alive = [m for m in seen.members if m.id in ids]
    if any(m.generation >= newest.number for m in alive) or not newest.members:
        return GenerationStatus(number=newest.number, size=len(newest.members), reason=newest.reason), _workers(alive)
    if previous is None:
        return None, ()
    placed = {m.id for m in seen.earlier(previous.number)}
    return previous, _workers([m for m in seen.members if m.id in placed or m.generation == previous.number])


def _workers(members: Iterable[Member]) -> tuple[str, ...]:
    return tuple(m.worker for m in members)


def last_rescale(previous: LastRescale | None, seen: Coordination, now: datetime) -> LastRescale | None:
    """The newest rescale that the trainer measured, with the time of the operator's first observation.

    The start (from 0 ranks) does not count.
    """
    measured = [r for r in seen.progress.rescales if r.from_size > 0] if seen.progress else []
    if not measured:
        return previous
    newest = reported.rescale_status(measured[-1])
    if previous and newest == previous.model_copy(update={"time": None}):
        return previous
    return newest.model_copy(update={"time": now.isoformat()})


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
    seconds, batch = reported.step_seconds(report), None
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
    new = reported.batch_status(report.batch)
    return new if old is None or _differs(old, new) else old


def rank_shares(old: list[RankShareStatus], etcd: Coordination) -> list[RankShareStatus]:
    """What the ranks report; ``old`` as long as they have not changed their shares."""
    if etcd.progress is None:
        return old
    new = reported.rank_shares(etcd.progress.shares)
    before, after = ({(s.rank, s.share, s.limit) for s in shares} for shares in (old, new))
    return old if before == after else new


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
    return (batch.samples, batch.base, batch.larger.samples if batch.larger else None)


def _is_settled(report: Progress) -> bool:
    began = next((r.step for r in report.rescales if r.generation == report.generation), 0)
    return report.step - began >= SETTLED_STEPS
