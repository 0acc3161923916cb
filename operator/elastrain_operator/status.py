"""The status of a job that has not ended, and when it is written: at once, or later where it can wait. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from elastrain.api import names
from elastrain.api.job import AcceleratorSeconds, ConditionType, GenerationStatus, JobStatus
from elastrain_operator.context import Sight
from elastrain_operator.model import Coordination, Outage
from elastrain_operator.policy.losses import arrival, exclusion, failures
from elastrain_operator.policy.report import accelerator_seconds, conditions, health, pace, progress
from elastrain_operator.policy.report.conditions import Claim
from elastrain_operator.policy.size import leaving, rollout, spares, wanted


def status_of(sight: Sight, create: tuple[int, ...], wait: datetime | None) -> JobStatus:
    """The status of a job that has not ended, anew from what is seen. What etcd told stays while it is silent."""
    old, seen, etcd, spec = sight.status, sight.seen, sight.etcd, sight.spec
    known = sight.members
    generation, ready = progress.in_force(old.generation, known) if known else (old.generation, old.ready_replicas)
    report = etcd.progress if etcd else None
    picture = _picture(sight, generation, ready, wait)
    claims, unhealthy = [*conditions.active(picture), *_claims(sight)], old.unhealthy_workers
    if known:
        unhealthy = health.unhealthy(unhealthy, known, sight.now)
        claims.append(health.claim(unhealthy, generation))
    grown = wanted.grown(old.conditions, spec.suspend, seen.share, sight.desired, spec.desired_replicas)
    if grown and not sight.finishing:
        claims.append(grown)
    merged = conditions.merge(old.conditions, claims, seen.job.generation, sight.now)
    warm = spares.standing_by(known) if known and spec.warm_spares else None
    place = accelerator_seconds.place(generation, known, sight.finishing, warm or frozenset()) if known else None
    beyond = min(max(len(sight.workers) - sight.desired, 0), sight.spares)
    following = max([old.next_ordinal, *(n + 1 for n in create), *(p.ordinal + 1 for p in seen.pods)])
    return JobStatus(
        phase=conditions.phase(merged, ready),
        conditions=merged,
        replicas=sum(not p.ending for p in seen.pods) - beyond,
        desired_replicas=sight.desired,
        ready_replicas=ready,
        spares=spares.status(spec, old.spares, sight.spares, warm),
        selector=f"{names.LABEL_JOB_UID}={seen.job.uid}",
        generation=generation,
        step=sight.step,
        progress=pace.progress_status(old.progress, report, sight.now),
        last_rescale=progress.last_rescale(old.last_rescale, etcd, sight.now) if etcd else old.last_rescale,
        accelerator_seconds=accelerator_seconds.account(books(sight), seen.pods, place, report, sight.now),
        unhealthy_workers=unhealthy,
        restarts=sight.count.restarts,
        last_failure=failures.last_failure(old.last_failure, sight.count.fresh, sight.now),
        counted_failures=list(sight.count.counted),
        leaving=leaving.record(sight.since, sight.leaving, sight.now),
        next_ordinal=following,
        start_time=sight.start.isoformat() if sight.start else None,
        loss_streak=sight.streak,
        withdrawal=sight.withdrawal,
        excluded_nodes=list(sight.ledger.excluded),
        node_losses=list(sight.ledger.losses),
        observed_generation=seen.job.generation,
    )


def _picture(
    sight: Sight, generation: GenerationStatus | None, ready: int, wait: datetime | None
) -> conditions.Picture:
    seen, etcd = sight.seen, sight.etcd
    workers = tuple(p for p in sight.workers if p not in sight.victims and p not in sight.late)
    return conditions.Picture(
        desired=sight.desired,
        ready=ready,
        workers=workers,
        draining=sum(not p.over for p in seen.pods if p.name in sight.leaving),
        generation=generation,
        pending_generation=_pending(etcd, generation.number if generation else None),
        progress=etcd.progress if etcd else None,
        outage=None if etcd else seen.outage or Outage(),
        has_checkpoints=sight.spec.checkpoint is not None,
        suspended=sight.spec.suspend,
        finishing=sight.finishing,
        refusal=seen.refusal,
        withdrawal=sight.withdrawal,
        troubles=arrival.told(workers, sight.troubles, sight.now),
        waits_until=wait,
        share=seen.share,
    )


def _claims(sight: Sight) -> Iterable[Claim]:
    """Conditions that only some jobs have."""
    old, total = sight.status.conditions, len(sight.workers)
    if sight.etcd is not None:
        was_told = any(c.type == ConditionType.UP_TO_DATE for c in old)
        yield from rollout.claim(sight.rollout, total, was_told, sight.spec.max_unavailable)
    yield from exclusion.claim(sight.ledger, old)


def books(sight: Sight) -> AcceleratorSeconds | None:
    """The ledger as this operator last knew it, else as the status has it."""
    return sight.seen.books or sight.status.accelerator_seconds


def _pending(etcd: Coordination | None, in_force: int | None) -> int | None:
    newest = etcd.generation if etcd else None
    return newest.number if newest and newest.number != in_force else None


def if_changed(old: JobStatus, new: JobStatus) -> JobStatus | None:
    """``new``, unless nothing has changed but that time has passed for the ledger."""
    before, now = old.accelerator_seconds, new.accelerator_seconds
    if accelerator_seconds.is_news(before, now) or {**vars(new), "accelerator_seconds": before} != vars(old):
        return new.model_copy(update={"accelerator_seconds": accelerator_seconds.rounded(now)})
    return None


def held_until(sight: Sight, written: JobStatus | None) -> datetime | None:
    """Until when a status that tells nothing urgent is held back; None: write it now, if at all."""
    last = sight.seen.status_written
    if written is None or last is None or _essence(written) != _essence(sight.status):
        return None
    until = last + timedelta(seconds=sight.seen.status_interval)
    return until if until > sight.now else None


_WAITS = frozenset({"step", "progress", "accelerator_seconds", "replicas", "conditions"})


def _essence(status: JobStatus) -> tuple[dict[str, object], list[dict[str, object]]]:
    """A status without what can wait: step and progress, the ledger, what conditions that hold say about them, the
    numbers of idle accelerators, and how many pods there are (while they start; every loss and every change of the
    generation is in other fields, too). Not a copy of the model, since this runs in most passes."""
    quiet = [
        {**vars(c), "message": ""} if c.status == "True" or c.type == ConditionType.GROWN else vars(c)
        for c in status.conditions
    ]
    return {name: value for name, value in vars(status).items() if name not in _WAITS}, quiet
