"""A job's claims on the cluster: spec, status and observation → the allocator's view of the job."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from elastrain_operator.allocation.resources import with_claims
from elastrain_operator.allocation.snapshot import PODS, Claims, Held, Job, Obstacle, PodCharge, Worker, WorkerShape
from elastrain_operator.facts import UNSCHEDULABLE, Coordination, Observed, Pod, Refusal
from elastrain_operator.pod.admitted import Admitted
from elastrain_operator.pod.leaving import held as held_by
from elastrain_operator.pod.shape import charge, shape, unknown
from elastrain_operator.policy.losses import starting
from elastrain_operator.policy.size import leavers, protection, replicas
from elastrain_operator.raw import mapping
from elastrain_resource.accelerators import AcceleratorUnclear
from elastrain_resource.job import JobSpec, JobStatus, reported
from elastrain_resource.sizing.speedup import Batches, Measured

_BARE = WorkerShape(((PODS, 1),))
HINDERED = frozenset({UNSCHEDULABLE, starting.QUEUED, "VolumeFailed"})
"""Reasons for which the scheduler has not bound a pod."""


@dataclass(frozen=True, slots=True)
class Creation:
    """What is known about the creation of a job's pods."""

    admitted: Admitted | None = None
    """The pod of the present template that the API server has admitted in a dry run; None: none."""
    refusal: Refusal | None = None
    """The standing refusal of a pod of the present spec, if it is about this job."""
    paced: bool = False
    """After losses, the next pod is created later."""
    hitch: Refusal | None = None
    """The standing refusal if its cause is elsewhere: a webhook that fails, an API server that is busy."""
    version: str = ""
    """Of the present template."""
    is_recent: bool = False
    """``admitted`` is recent enough for workers of other jobs to leave by it."""


def claims(
    spec: JobSpec, status: JobStatus, seen: Observed, workers: Iterable[Pod], creation: Creation | None
) -> Claims:
    """The claims of one job.

    ``status``: as just planned; ``workers``: pods that count as workers and were not asked to leave; ``creation``:
    None: the job needs no workers.
    """
    active = tuple(workers) if creation else ()
    leaving = held(seen, active)
    if creation is None:
        return Claims(None, leaving=leaving)
    etcd, rescaled = seen.coordination, status.last_rescale
    size = (status.desired_replicas or 0) * spec.group_size
    job = Job(
        uid=seen.job.uid,
        namespace=seen.job.namespace,
        name=seen.job.name,
        min=spec.min_replicas * spec.group_size,
        cap=spec.desired_replicas * spec.group_size,
        group_size=spec.group_size,
        kind=_kind(spec, status, active, creation, seen.job.namespace),
        elastic=spec.replicas is None,
        created=seen.created.timestamp() if seen.created else 0.0,
        workers=_workers(spec, seen, active, size),
        size=size,
        trains=has_state(active, status, etcd),
        resized=datetime.fromisoformat(rescaled.time) if rescaled and rescaled.time else None,
        pause=rescaled.pause_seconds if rescaled else None,
        rescales=max(status.generation.number - 1, 0) if status.generation else 0,
        samples=_samples(etcd),
        measured=_measured(spec, status),
        batches=_batches(spec, status, etcd),
        remaining=_remaining(etcd),
        nproc=_ranks(spec),
        spares=spec.warm_spares * spec.group_size if status.generation and status.generation.size else 0,
        generation=seen.job.generation,
        admitted=_is_admitted(active, creation),
        refused=creation.refusal.at if creation.refusal and creation.refusal.attempts > 1 else None,
        hindered=any(_is_hindered(p) for p in active),
        evicting=any(p.evicting for p in active),
        paced=creation.paced,
        unknown=creation.admitted.unknown if creation.admitted and creation.admitted.shape else _unknown(spec),
        altered=creation.admitted.changes if creation.admitted else (),
    )
    named = (spec.template.get("spec") or {}).get("priorityClassName")
    known = creation.admitted
    charged = known.charge if known and known.charge else _charge(spec)
    priority = known.priority if known else None
    return Claims(job, str(named or ""), leaving, _obstacle(active, creation), charged, priority)


def _workers(spec: JobSpec, seen: Observed, active: Sequence[Pod], size: int) -> tuple[Worker, ...]:
    """The workers in the order in which they stay: training ones before spares."""
    etcd = seen.coordination
    placed = {m.worker for m in etcd.generation.members} if etcd and etcd.generation else frozenset()
    # The allocator's last selection must not influence its next one.
    share = replace(seen.share, release=frozenset()) if seen.share else None
    stays = tuple(reversed(leavers.ranked(active, etcd, share)))
    extra = _spares(spec, stays, size, placed)
    ordered = sorted(stays, key=lambda p: p.name in extra)
    return tuple(_worker(p, p.name in placed, p.name in extra, spec.group_size) for p in ordered)


def _worker(pod: Pod, trains: bool, spare: bool, group_size: int) -> Worker:
    group = "" if group_size == 1 else str(pod.slot.group) if pod.slot else pod.name
    return Worker(pod.name, pod.node, pod.demand, trains, spare, group, pod.uid, starting.is_stuck(pod))


def _is_admitted(active: Iterable[Pod], creation: Creation) -> bool:
    """A pod that exists was admitted; a standing refusal outweighs it, since policies and quotas change."""
    return creation.refusal is None and (creation.is_recent or any(True for _ in active))


def _is_hindered(pod: Pod) -> bool:
    return not pod.node and pod.trouble is not None and pod.trouble.reason in HINDERED


def _obstacle(active: Iterable[Pod], creation: Creation) -> Obstacle | None:
    if creation.refusal is not None:
        return Obstacle(creation.refusal.kind.reason, creation.refusal.message, refused=True)
    if creation.hitch is not None:
        return Obstacle(creation.hitch.kind.reason, creation.hitch.message)
    pods = sorted((p for p in active if _is_hindered(p) or starting.is_stuck(p)), key=starting.is_stuck)
    troubles = (p.trouble for p in pods if p.trouble)
    return next((Obstacle(t.reason, t.message) for t in troubles), None)


def held(seen: Observed, workers: Iterable[Pod] = ()) -> tuple[Held, ...]:
    """What pods of the job hold that are not among its ``workers``."""
    names = {p.name for p in workers}
    others = (*(p for p in seen.pods if p.name not in names), *seen.unissued)
    return tuple(held_by(p) for p in others if p.node and not p.over)


def _spares(spec: JobSpec, stays: Iterable[Pod], size: int, placed: Collection[str]) -> frozenset[str]:
    """Workers (names) beyond the desired number that do not train."""
    if not spec.warm_spares:
        return frozenset()
    outside = replicas.of(p for p in stays if p.name not in placed)
    return frozenset(p.name for group in outside[max(size - len(placed), 0) // spec.group_size :] for p in group)


def has_state(active: Iterable[Pod], status: JobStatus, etcd: Coordination | None) -> bool:
    """Whether a worker of the job has ever trained: its memory may then hold the only copy of the model."""
    workers = tuple(active)
    names = {p.name for p in workers}
    if etcd is None or (etcd.generation is None and status.generation is not None):
        return bool(names) and status.generation is not None  # the members are unknown
    # Not every member's record says what it has adopted, and the order to stop has no members.
    if protection.holders(workers, etcd):
        return True
    trained = {m.worker for m in etcd.members if m.generation > 0}
    placed = {m.worker for m in etcd.generation.members} if etcd.generation else set()
    return bool(names & (trained | placed))


def _kind(spec: JobSpec, status: JobStatus, active: Iterable[Pod], creation: Creation, namespace: str) -> WorkerShape:
    """What the next worker needs: as the API server has admitted one, else by the template. What pods of the present
    template that exist hold, unless they were resized, outweighs both."""
    avoid = tuple(sorted(e.node for e in status.excluded_nodes))
    known = creation.admitted.shape if creation.admitted else None
    try:
        made = replace(known, place=replace(known.place, avoid=avoid)) if known else shape(spec.template, avoid)
    except (AttributeError, KeyError, TypeError, ValueError):
        return _BARE  # no valid pod: the API server refuses it, and the job's conditions report it
    alike = (p for p in active if p.template == creation.version and p.demand and not p.resized)
    newest = max(alike, key=_ordinal, default=None)
    if newest is not None:
        return replace(made, demand=newest.demand)
    return replace(made, demand=with_claims(made.demand, mapping(spec.template.get("spec")), namespace))


def _ordinal(pod: Pod) -> int:
    return pod.ordinal


def _charge(spec: JobSpec) -> PodCharge:
    try:
        return charge(spec.template)
    except (AttributeError, KeyError, TypeError, ValueError):
        return PodCharge()  # no valid pod, as above


def _unknown(spec: JobSpec) -> tuple[str, ...]:
    try:
        return unknown(spec.template)
    except (AttributeError, TypeError):
        return ()  # no valid pod, as above


def _ranks(spec: JobSpec) -> int:
    try:
        return spec.ranks_per_worker
    except AcceleratorUnclear:
        return 1  # for messages only; the job's conditions report the problem


def _remaining(etcd: Coordination | None) -> float | None:
    report = etcd.progress if etcd else None
    end = reported.total_steps(report) if report is not None else None
    if report is None or end is None or report.step_seconds is None:
        return None
    return max(end - report.step, 0) * report.step_seconds


def _samples(etcd: Coordination | None) -> float | None:
    report = etcd.progress if etcd else None
    if report is not None and report.batch is not None:
        return report.batch.samples
    return None if report is None or not report.step else report.samples / report.step


def _measured(spec: JobSpec, status: JobStatus) -> tuple[Measured, ...]:
    """Without times that are none: the status is an object that people may write. Times of steps whose batch is unknown
    do not compare with those of chosen batches."""
    return tuple(
        Measured(m.workers, m.nodes, m.step_seconds, m.batch)
        for m in status.measured_sizes
        if m.workers > 0 and 0 < m.step_seconds < math.inf and (spec.batch is None) == (m.batch is None)
        if m.batch is None or m.batch > 0
    )


def _batches(spec: JobSpec, status: JobStatus, etcd: Coordination | None) -> Batches | None:
    """The batches among which the ranks choose. Until they have reported the script's own, it counts as the smallest
    that is permitted, and a rank computes as much at once as with the job's smallest size and that batch."""
    if spec.batch is None:
        return None
    known = status.batch
    base = known.base if known is not None and known.base is not None and known.base > 0 else spec.batch.min
    noise = known.noise_scale if known is not None else None
    usable = noise is not None and 0 < noise < math.inf
    nproc, least = _ranks(spec), spec.min_replicas * spec.group_size
    report = etcd.progress.batch if etcd and etcd.progress else None
    micro = report.micro_batch if report and report.micro_batch is not None and report.micro_batch > 0 else None
    each = micro or -(-base // (least * nproc))
    return Batches(base, max(spec.batch.max, base), noise if usable else None, nproc, each * nproc)
