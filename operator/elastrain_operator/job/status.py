"""The status of a job that has not ended, and when it is written: at once, or later if it is not urgent. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from elastrain.api import names
from elastrain_operator.facts import ConditionUpdate, Coordination, Outage, Slot
from elastrain_operator.job.state import BUDGET, GANG, MARKS, SET
from elastrain_operator.job.steps import Steps
from elastrain_operator.pod.leaving import overdue
from elastrain_operator.policy import elsewhere
from elastrain_operator.policy.losses import data_loss, exclusion, starting
from elastrain_operator.policy.report import accelerator_seconds, conditions, health, training
from elastrain_operator.policy.size import leavers, replicas, rollout, sizes
from elastrain_resource import durability
from elastrain_resource.job import Condition, ConditionType, GenerationStatus, JobStatus, reported


def status_of(taken: Steps, create: tuple[int, ...], slots: tuple[Slot, ...], wait: datetime | None) -> JobStatus:
    """The status of a job that has not ended. Values from etcd stay unchanged while etcd is unknown.
    ``create``, ``slots``: ordinals of the pods that are created now, and their places in groups."""
    old, seen, spec = taken.facts.status, taken.facts.observed, taken.facts.spec
    etcd, known = taken.known.etcd, taken.known.members
    generation, ready = old.generation, old.ready_replicas
    if known:
        generation, alive = training.in_force(old.generation, known)
        ready = replicas.count_whole(seen.pods, alive, spec.group_size)
    report = etcd.progress if etcd else None
    unhealthy = health.unhealthy(old.unhealthy_workers, known, taken.facts.now) if known else old.unhealthy_workers
    given = _condition_facts(taken, generation, ready, wait)
    updates = [*conditions.active(given), *_of_some_jobs(taken)]
    updates += conditions.dated(old.conditions) if given.outage else []
    if known:
        updates.append(health.claim(unhealthy, generation))
    merged = conditions.merge(old.conditions, updates, taken.facts.now)
    used = taken.facts.state.usage or old.accelerator_seconds
    warm = sizes.standing_by(known) if known and spec.warm_spares else None
    place = accelerator_seconds.place(generation, known, taken.known.finishing, warm or frozenset()) if known else None
    following = max([old.next_ordinal, *(n + 1 for n in create), *(p.ordinal + 1 for p in seen.pods)])
    return JobStatus(
        phase=conditions.phase(merged, ready),
        conditions=merged,
        replicas=_existing(taken, slots),
        desired_replicas=taken.size.desired,
        ready_replicas=ready,
        spares=sizes.spares_status(spec, old.spares, taken.size.spares, warm),
        selector=_selector(taken),
        generation=generation,
        step=taken.known.step,
        progress=reported.progress_status(old.progress, old.step, report, taken.facts.now),
        last_rescale=training.last_rescale(old.last_rescale, etcd, taken.facts.now) if etcd else old.last_rescale,
        measured_sizes=training.measured_sizes(old.measured_sizes, etcd, seen.pods) if etcd else old.measured_sizes,
        batch=training.batch_status(old.batch, etcd) if etcd else old.batch,
        rank_shares=training.rank_shares(old.rank_shares, etcd) if etcd else old.rank_shares,
        accelerator_seconds=accelerator_seconds.account(used, seen.pods, place, report, taken.facts.now),
        unhealthy_workers=unhealthy,
        restarts=taken.lost.count.restarts,
        last_failure=taken.lost.last_failure,
        counted_failures=list(taken.lost.count.counted),
        leaving=leavers.leaving_record(taken.known.since, taken.leave.leaving & taken.known.draining, taken.facts.now),
        next_ordinal=following,
        etcd=elsewhere.claim(spec.suspend, seen),
        start_time=taken.known.start.isoformat() if taken.known.start else None,
        loss_streak=taken.lost.streak,
        withdrawal=taken.leave.withdrawal,
        excluded_nodes=list(taken.lost.exclusions.excluded),
        observed_generation=seen.job.generation,
    )


def _existing(taken: Steps, slots: tuple[Slot, ...]) -> int:
    """Replicas whose pods exist, without spares and those that wait for nodes. Those that come now, in ``slots``,
    are counted at once, which saves a write of the status."""
    there = replicas.of(p for p in taken.facts.observed.pods if not p.ending)
    coming = 0 if taken.facts.state.refusal else replicas.count_new(there, slots, taken.facts.spec.group_size)
    beyond = min(max(len(taken.there.units) + coming - taken.size.desired, 0), taken.size.beyond)
    return len(there) + coming - beyond


def _selector(taken: Steps) -> str:
    """As many pods as there are replicas, which an HPA expects: of each group the first worker."""
    of_job = f"{names.LABEL_JOB_UID}={taken.facts.observed.job.uid}"
    return of_job if taken.facts.spec.group_size == 1 else f"{of_job},{names.LABEL_PLACE}=0"


def _condition_facts(
    taken: Steps, generation: GenerationStatus | None, ready: int, wait: datetime | None
) -> conditions.ConditionFacts:
    seen, etcd = taken.facts.observed, taken.known.etcd
    apart = {p.name for p in (*taken.leave.victims, *taken.leave.withdrawn)} | taken.leave.signals
    leaving = [p for p in seen.pods if p.name in taken.leave.leaving]
    size, last = taken.facts.spec.group_size, taken.lost.last_failure
    if generation is not None:
        generation = generation.model_copy(update={"size": generation.size // size})
    workers = tuple(p for p in taken.there.workers if p.name not in apart)
    return conditions.ConditionFacts(
        desired=taken.size.desired,
        ready=ready,
        workers=workers,
        draining=sum(not leavers.has_left(p, taken.known.members, taken.facts.now) for p in leaving),
        overdue=overdue(seen.pods, taken.facts.now),
        generation=generation,
        group_size=size,
        pending_generation=_pending(etcd, generation.number if generation else None),
        progress=etcd.progress if etcd else None,
        outage=None if etcd else seen.outage or Outage(),
        lost=data_loss.message(taken.facts.status, etcd) if etcd and not taken.known.members else "",
        has_checkpoints=taken.facts.spec.checkpoint is not None,
        checkpoint_problem=durability.problem(taken.facts.spec),
        suspended=taken.facts.spec.suspend,
        finishing=taken.known.finishing,
        refusal=taken.facts.state.refusal,
        withdrawal=taken.leave.withdrawal,
        troubles=starting.lasting(workers, taken.there.troubles, taken.facts.now),
        waits_until=wait,
        failure=f"last failure: {last.message}" if last else "",
        share=seen.share,
    )


def _of_some_jobs(taken: Steps) -> Iterable[ConditionUpdate]:
    """Conditions that only some jobs have."""
    spec, seen, answered = taken.facts.spec, taken.facts.observed, taken.facts.state.unanswered_since is None
    old, total = taken.facts.status.conditions, len(taken.there.units)
    if taken.known.etcd is not None:
        was_reported = any(c.type == ConditionType.UP_TO_DATE for c in old)
        made = rollout.claim(taken.leave.rollout, total, was_reported, taken.facts.spec.max_unavailable)
        late = overdue(seen.pods, taken.facts.now)
        yield from (replace(c, message=c.message + late) if c.status == "False" else c for c in made)
    yield from exclusion.claim(taken.lost.exclusions, old)
    grouped = any(c.type == ConditionType.GANG_SCHEDULED for c in old)
    unwritten = taken.facts.state.unwritten
    yield from conditions.gang_scheduled(
        taken.facts.state.gang, spec.min_replicas * spec.group_size, grouped, unwritten.get(GANG, "")
    )
    known = any(c.type == ConditionType.STATE_PROTECTED for c in old)
    refused = [unwritten.get(what, "") for what in (BUDGET, MARKS, SET)]
    yield from conditions.state_protected(*refused, was_reported=known)
    grown = sizes.grown(old, spec.suspend, seen.share, taken.size.desired, spec.desired_replicas, answered=answered)
    grown = sizes.with_ignored_queue(grown, seen.ignored_queue, is_shared=seen.share is not None)
    if grown and not taken.known.finishing:
        yield grown


def _pending(etcd: Coordination | None, in_force: int | None) -> int | None:
    newest = etcd.generation if etcd else None
    return newest.number if newest and newest.number != in_force else None


def if_changed(old: JobStatus, new: JobStatus) -> JobStatus | None:
    """``new``, unless only the accelerator usage has grown with time."""
    before, now = old.accelerator_seconds, new.accelerator_seconds
    if accelerator_seconds.differs(before, now) or {**vars(new), "accelerator_seconds": before} != vars(old):
        return new.model_copy(update={"accelerator_seconds": accelerator_seconds.rounded(now)})
    return None


def held_until(taken: Steps, written: JobStatus | None) -> datetime | None:
    """Until when a status without urgent changes is delayed; None: write it now, if at all.

    A new spec of which only the generation is to be reported is delayed until the allocator has answered it, bounded.
    """
    last, owed_since = taken.facts.state.status_written, taken.facts.state.unanswered_since
    if written is None:
        return None
    untils = []
    if owed_since is not None and _essence(written, of_any_spec=True) == _essence(taken.facts.status, of_any_spec=True):
        untils.append(owed_since + sizes.ANSWER)
    if last is not None and _essence(written) == _essence(taken.facts.status):
        untils.append(last + timedelta(seconds=taken.facts.state.status_interval))
    return max((until for until in untils if until > taken.facts.now), default=None)


_WAITS = frozenset({"step", "progress", "batch", "rank_shares", "accelerator_seconds", "replicas", "conditions"})


def _essence(status: JobStatus, *, of_any_spec: bool = False) -> tuple[dict[str, object], list[dict[str, object]]]:
    """A status without its non-urgent parts: step, progress, batch, shares, changed times of measured sizes,
    accelerator usage, the figures of these in messages of true conditions, idle accelerators, and the number of pods
    (in a start; each loss and each change of the generation also changes other fields). ``of_any_spec``: also without
    the spec's generation. Not a copy of the model, since this runs in most passes."""
    quiet = [{**vars(c), **_said(c)} for c in status.conditions]
    waits = _WAITS | {"observed_generation"} if of_any_spec else _WAITS
    fields = {name: value for name, value in vars(status).items() if name not in waits}
    return fields | {"measured_sizes": [(m.workers, m.nodes, m.batch) for m in status.measured_sizes]}, quiet


def _said(condition: Condition) -> dict[str, str]:
    """What a condition says only for people, blank: they may see it later."""
    if condition.type == ConditionType.RESCALING and condition.status == "True":
        return {"reason": "", "message": ""}  # members enter a generation one by one
    return {"message": ""} if condition.status == "True" or condition.type == ConditionType.GROWN else {}
