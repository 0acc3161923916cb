"""Spec, status and observation → plan. Pure: same input, same plan, no side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from elastrain.api.job import ConditionType, JobSpec, JobStatus
from elastrain.api.records import Target
from elastrain_operator.allocation.model import Claims
from elastrain_operator.context import PlanContext
from elastrain_operator.kueue.model import Seat
from elastrain_operator.model import Deletion, DisruptionBudget, JobEvent, LoopState, Loss, Observed, Plan, Slot
from elastrain_operator.policy.ending import clean, deletion, success
from elastrain_operator.policy.ending import ttl as ttl_policy
from elastrain_operator.policy.ending import verdict as verdicts
from elastrain_operator.policy.ending.verdict import Verdict
from elastrain_operator.policy.losses import arrival, pending, proof, restarts, streak, unheard
from elastrain_operator.policy.report import accelerator_seconds, conditions, data_loss, events
from elastrain_operator.policy.report.conditions import Claim
from elastrain_operator.policy.size import claims as claims_policy
from elastrain_operator.policy.size import drain, eviction, gang, groups, workers
from elastrain_operator.policy.size import target as targets
from elastrain_operator.status import held_until, if_changed, status_of

DRAIN_EXTRA = 30.0
"""Seconds beyond a pod's own grace period that a worker may take to leave."""
STATUS_INTERVAL = 5.0
"""Seconds between two non-urgent writes of the status (with many jobs: reconcile.loops.STATUS_SHARE)."""
REFUSAL_DELAYS = (2.0, 5.0, 15.0, 60.0)
"""Seconds before a refused pod is retried, by the number of consecutive refusals."""


def plan(
    spec: JobSpec,
    status: JobStatus,
    observed: Observed,
    now: datetime,
    state: LoopState | None = None,
    *,
    drain_extra: float = DRAIN_EXTRA,
) -> Plan:
    """The actions for one job now. ``apply`` executes them; ``now`` is timezone-aware.

    Invariants: no action that needs membership is planned while etcd is unknown; every ended pod is counted before it
    is deleted; a worker of the generation in force is deleted only after it was asked to leave and has left, or its
    drain deadline has passed, or the job has ended.
    """
    context = PlanContext(spec, status, observed, state or LoopState(), now, drain_extra)
    terminal = verdicts.terminal_condition(status)
    if terminal:
        return _after_end(context, terminal)
    if context.is_undecided:
        return Plan(claims=_for_allocator(context, status))  # the allocator answers before any action or status
    verdict = (
        verdicts.divergence(observed.pods)
        or success.verdict(spec.success_policy, observed.pods, observed.coordination)
        or verdicts.failure(spec.backoff_limit, context.count.restarts, context.losses)
        or streak.verdict(spec, context.streak)
        or verdicts.overdue(spec, context.start, now)
        or (None if context.finishing else pending.verdict(spec, context.workers, context.units, now))
    )
    return _end(context, verdict) if verdict else _go_on(context)


def refuse(status: JobStatus, observed: Observed, message: str, now: datetime, state: LoopState | None = None) -> Plan:
    """The plan for a job whose spec breaks a rule: report it, count its pods, and change nothing."""
    state, claim = state or LoopState(), Claim(ConditionType.PODS_READY, "False", "SpecInvalid", message)
    made = _report(status, claim, observed.job.generation, now, _counted(status, observed, state, now))
    return replace(made, unheard=state.unheard, gang=state.gang)


def fault(status: JobStatus, generation: int | None, message: str, retry: float, now: datetime) -> Plan:
    """The plan for a job that the operator cannot process because of its own fault: report it and change nothing."""
    text = f"{message}: a fault of the operator, which has logged it and retries within {retry:g} s; please report it. "
    text += "Meanwhile running workers continue to train; a change of the spec may avoid the fault"
    return _report(status, Claim(ConditionType.PODS_READY, "False", "OperatorFault", text), generation, now, {})


def deleted(
    status: JobStatus, observed: Observed, finalizers: Sequence[str], now: datetime, state: LoopState | None = None
) -> Plan:
    """The plan for a job that is being deleted and still exists, since ``finalizers`` hold it: it claims nothing any
    more, and its workers leave. Needs neither its spec nor etcd."""
    state, pods = state or LoopState(), observed.pods
    counted = _counted(status, observed, state, now, accelerator_seconds.Place())
    made = _report(status, deletion.claim(pods, finalizers), observed.job.generation, now, counted)
    return replace(
        made,
        events=(),
        delete=deletion.deletions(pods, finalizers),
        claims=None if observed.share is None else Claims(None, leaving=claims_policy.held(observed)),
        departed=tuple(state.gone),
    )


def _counted(
    status: JobStatus,
    observed: Observed,
    state: LoopState,
    now: datetime,
    place: accelerator_seconds.Place | None = None,
) -> dict[str, Any]:
    """Fields of the status that follow from the pods alone. ``place``: None: as before."""
    live, before = len(groups.of(p for p in observed.pods if not p.ending)), state.usage or status.accelerator_seconds
    return {
        "replicas": live,
        "ready_replicas": min(status.ready_replicas, live),
        "accelerator_seconds": accelerator_seconds.account(before, observed.pods, place, None, now),
    }


def _report(status: JobStatus, claim: Claim, generation: int | None, now: datetime, counted: Mapping[str, Any]) -> Plan:
    """Reports ``claim`` and the fields that were ``counted``; nothing else changes."""
    merged = conditions.merge(status.conditions, [claim], generation, now)
    changed = status.model_copy(update={"conditions": merged, "observed_generation": generation, **counted})
    said = events.events_of(status, changed, None, None, ())
    return Plan(status=if_changed(status, changed), events=said, usage=counted.get("accelerator_seconds"))


# ---- an active job -------------------------------------------------------------------------------------------------
def _go_on(context: PlanContext) -> Plan:
    spec, seen, now = context.spec, context.observed, context.now
    wait = _creation_wait(context)
    slots, seats = ((), ()) if wait or context.etcd is None or context.finishing else _missing(context)
    create = workers.ordinals(len(slots), context.state.unborn, context.observed.pods, context.status.next_ordinal)
    ended = clean.ended(seen.pods, frozenset(context.count.counted), now)
    delete = _unique(
        (
            *_drained(context),
            *_silenced(context),
            *pending.deletions(p for p in context.withdrawn if not p.started),
            *ended,
        )
    )
    target = (
        targets.target(spec, context.desired, context.etcd.target, context.leaving, stop=False, above=context.floor)
        if context.etcd
        else None
    )
    slots = slots[: len(create)]
    status = status_of(context, create, slots, wait)
    made = _finish_plan(
        context, status, target, create=create, delete=delete, due=_deadlines(context, wait), lost=context.count.fresh
    )
    made = replace(made, seats=seats[: len(create)], slots=slots if context.spec.group_size > 1 else ())
    probe = None if wait or create or not context.must_probe else status.next_ordinal
    marks = eviction.marks(context.spec.template, context.observed.pods, context.budget)
    return replace(made, probe=probe, marks=marks, unheard=context.unheard, gang=context.gang)


def _missing(context: PlanContext) -> tuple[tuple[Slot, ...], tuple[Seat, ...]]:
    """A slot for each pod to create now, and if Kueue decides the job's size, a seat for each slot."""
    more = max(context.desired + context.beyond - len(context.units), 0) or context.rollout.create
    more = min(more, workers.BATCH)
    slots = (*context.slots, *groups.slots((), context.observed.pods, context.spec.group_size, more))
    if context.state.refusal:
        slots = slots[:1]  # one pod shows whether the API server still refuses
    if context.observed.seats is None:
        return slots, ()
    charged = groups.charged(slots, context.workers, context.observed.seats)
    return tuple(slot for slot, _ in charged), tuple(seat for _, seat in charged)


def _pace(context: PlanContext) -> datetime | None:
    """When losses let the next worker be created; None: now."""
    waits = [restarts.not_before(context.count.restarts, context.observed.pods, context.now)]
    waits.append(restarts.after_last(context.count.restarts, context.last_failure, context.observed.pods, context.now))
    waits.append(streak.not_before(context.spec, context.streak))
    if context.withdrawal:
        waits.append(datetime.fromisoformat(context.withdrawal.until))
    latest = max((w for w in waits if w), default=None)
    return latest if latest and latest > context.now else None


def _creation_wait(context: PlanContext) -> datetime | None:
    """When the next worker may be created; None: now."""
    waits = [_pace(context)]
    refusal = context.state.refusal
    if refusal and refusal.generation == context.observed.job.generation:
        delay = REFUSAL_DELAYS[min(refusal.attempts, len(REFUSAL_DELAYS)) - 1]
        waits.append(refusal.at + timedelta(seconds=max(delay, refusal.retry)))
    latest = max((w for w in waits if w), default=None)
    return latest if latest and latest > context.now else None


def _drained(context: PlanContext) -> Iterable[Deletion]:
    """Leaving workers to delete. A worker asked in this pass must first be able to read it, unless it never started."""
    for pod in context.observed.pods:
        if pod.name not in context.leaving or pod.terminating:
            continue
        known = context.etcd is not None and (pod.name in context.asked or not pod.started)
        why = drain.released(pod, context.members, context.due(pod), context.now) if known else None
        if why:
            yield Deletion(pod.name, pod.uid, why)


def _silenced(context: PlanContext) -> Iterable[Deletion]:
    """Workers on silent nodes, so that they do not return beside their replacements. Never forced: their processes may
    still run, and their node accepts no other pods meanwhile."""
    for pod in context.observed.pods:
        if pod.name in context.silent and not pod.terminating and pod.name not in context.asked:
            hung = pod.uid in context.overdue
            why = "its agent does not answer" if hung else "lost with its node"
            yield Deletion(pod.name, pod.uid, why, silent=not hung)


# ---- a job that ends -----------------------------------------------------------------------------------------------
def _end(context: PlanContext, verdict: Verdict) -> Plan:
    status = status_of(context, (), (), None)
    lasting = [c for c in status.conditions if c.type != ConditionType.GROWN]  # an ended job does not grow
    merged = conditions.merge(lasting, conditions.ended(verdict), context.observed.job.generation, context.now)
    status = status.model_copy(
        update={
            "conditions": merged,
            "phase": verdict.condition.value,
            "ready_replicas": 0,  # no generation trains any more, though scripts may still run
            "leaving": [],
            "completion_time": context.now.isoformat(),
            "accelerator_seconds": accelerator_seconds.dissolved(status.accelerator_seconds),
            "unhealthy_workers": [],
            "spares": None,
        }
    )
    return _settle(context, status, verdict.condition, context.count.fresh)


def _after_end(context: PlanContext, terminal: ConditionType) -> Plan:
    old, seen = context.status, context.observed
    status = old.model_copy(
        update={
            **_counted(old, seen, context.state, context.now, accelerator_seconds.Place()),
            "leaving": [],
            "counted_failures": [uid for uid in old.counted_failures if uid in {p.uid for p in seen.pods}],
            "completion_time": old.completion_time or context.now.isoformat(),
            "observed_generation": seen.job.generation,
        }
    )
    return _settle(context, status, terminal)


def _settle(context: PlanContext, status: JobStatus, verdict: ConditionType, lost: Iterable[Loss] = ()) -> Plan:
    """Clean up after the end; a failed job's workers are first asked to save and leave."""
    assert status.completion_time is not None
    completion = datetime.fromisoformat(status.completion_time)
    delete = clean.finished(context.observed.pods, context.spec.clean_pod_policy, verdict, completion, context.now)
    target = None
    if verdict is ConditionType.FAILED and context.etcd is not None:
        everyone = {p.name for p in context.observed.pods if not p.over}
        target = targets.target(context.spec, 0, context.etcd.target, everyone, stop=True, above=context.floor)
    expiry = ttl_policy.expiry(context.spec.ttl_seconds_after_finished, completion)
    expired = expiry is not None and context.now >= expiry
    waiting = any(not p.over and not p.terminating for p in context.observed.pods)
    due = [expiry, clean.finish_deadline(completion) if waiting else None]
    return _finish_plan(context, status, target, delete=delete, due=due, delete_job=expired, lost=lost)


# ---- common --------------------------------------------------------------------------------------------------------
def _deadlines(context: PlanContext, wait: datetime | None) -> list[datetime | None]:
    """Times at which an active job needs another pass even without a change."""
    drains = [context.due(p) for p in context.observed.pods if p.name in context.leaving and not p.terminating]
    sidecars = [clean.sidecar_deadline(p) for p in context.observed.pods if p.ending and not p.over]
    patience = [arrival.report_at(p, t) for p in context.workers if (t := context.troubles.get(p.name))]
    limit = context.spec.pending_deadline_seconds
    clocks = [context.rollout.until, context.exclusions.until, pending.next_deadline(context.workers, limit)]
    if context.lost_since:
        clocks.append(context.lost_since + data_loss.PATIENCE)
    clocks += [unheard.next_deadline(context.unheard), gang.next_change(context.gang, context.observed.job.uid)]
    return [wait, verdicts.deadline(context.spec, context.start), *clocks, *drains, *sidecars, *patience]


def _finish_plan(
    context: PlanContext,
    status: JobStatus,
    target: Target | None,
    *,
    create: tuple[int, ...] = (),
    delete: tuple[Deletion, ...] = (),
    due: Iterable[datetime | None] = (),
    delete_job: bool = False,
    lost: Iterable[Loss] = (),
) -> Plan:
    before = context.etcd.target if context.etcd else None
    target = None if target == before else target
    written = if_changed(context.status, status)
    held = held_until(context, written)
    moments = [t for t in [*due, held] if t and t > context.now]
    published = events.events_of(context.status, status, before, target, lost)
    going = {d.uid for d in delete}
    left = [p.name for p in context.observed.pods if p.uid in going and p.name in context.asked and clean.is_drained(p)]
    if left:
        published = (*published, JobEvent("Drained", f"left at a step boundary: {', '.join(left)}"))
    return Plan(
        status=None if held else written,
        ended=proof.ended_members((*context.observed.pods, *context.state.gone.values()), context.etcd),
        target=target,
        create=create,
        # Needed workers come first; beyond the desired number a new worker is a spare.
        stand_by=create[max(context.desired * context.spec.group_size - len(context.workers), 0) :]
        if create and context.spares
        else (),
        delete=delete,
        delete_job=delete_job,
        events=published,
        keep_off=context.exclusions.nodes,
        requeue_after=(min(moments) - context.now).total_seconds() if moments else None,
        usage=status.accelerator_seconds,
        claims=_for_allocator(context, status),
        budget=_budget(context, status),
        group=_group(context, status),
        departed=tuple(context.state.gone),
    )


def _budget(context: PlanContext, status: JobStatus) -> DisruptionBudget | None:
    """The disruption budget to write; ``status`` as just planned."""
    before = context.state.budget
    if verdicts.terminal_condition(status) is not None:
        return DisruptionBudget() if before and before.ordinals else None
    if before is None and context.status.generation is None:
        before = DisruptionBudget()  # the job has not trained yet
    return None if context.budget == before else context.budget


def _group(context: PlanContext, status: JobStatus) -> bool:
    """Whether the scheduler is to know the job's gang: it wants workers, or has some; ``status`` as just planned."""
    wants = not context.spec.suspend and verdicts.terminal_condition(status) is None
    return wants or any(not p.over for p in context.observed.pods)


def _for_allocator(context: PlanContext, status: JobStatus) -> Claims | None:
    """The job's claims for the allocator; ``status`` as just planned."""
    if context.observed.share is None:
        return None
    wants = not context.spec.suspend and not context.finishing and verdicts.terminal_condition(status) is None
    workers = [p for p in context.workers if p not in context.victims]
    creation = claims_policy.Creation(context.is_admitted, context.refusal, _pace(context) is not None)
    return claims_policy.claims(context.spec, status, context.observed, workers, creation if wants else None)


def _unique(deletions: Iterable[Deletion]) -> tuple[Deletion, ...]:
    """Each pod once, with the first reason."""
    by_uid: dict[str, Deletion] = {}
    for each in deletions:
        by_uid.setdefault(each.uid, each)
    return tuple(by_uid.values())
