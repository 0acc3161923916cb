"""Spec, status and observation → plan. Pure: same input, same plan, no side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from elastrain.api.records import Target
from elastrain_operator.allocation.snapshot import Claims
from elastrain_operator.facts import (
    ConditionUpdate,
    Deletion,
    DisruptionBudget,
    EndedMember,
    JobEvent,
    Loss,
    Observed,
    Still,
    Verdict,
    WorkerCount,
)
from elastrain_operator.job import steps
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.job.status import held_until, if_changed, status_of
from elastrain_operator.job.steps import Facts, Known, Lost, Steps, There
from elastrain_operator.pod.leaving import due
from elastrain_operator.pod.template import version
from elastrain_operator.policy import ending
from elastrain_operator.policy.losses import counting, data_loss, starting
from elastrain_operator.policy.report import accelerator_seconds, conditions, events
from elastrain_operator.policy.size import claims, leavers, protection, replicas, sizes
from elastrain_resource.job import ConditionType, JobSpec, JobStatus

STATUS_INTERVAL = 5.0
"""Seconds between two non-urgent writes of the status (with many jobs: job.loops.STATUS_SHARE)."""


def plan(
    spec: JobSpec,
    status: JobStatus,
    observed: Observed,
    now: datetime,
    state: LoopState | None = None,
) -> Plan:
    """The actions for one job now. ``apply`` executes them; ``now`` is timezone-aware.

    Invariants: no action that needs membership is planned while etcd is unknown; every ended pod is counted before it
    is deleted; a worker of the generation in force is deleted only after it was asked to leave and has left, or its
    drain deadline has passed, or the job has ended.
    """
    made_of = version(spec.template)
    facts = Facts(spec, status, observed, state or LoopState(), now, made_of)
    known = steps.known(facts)  # 1: what may be believed
    lost = steps.lost(facts, known)  # 2: who is lost, each counted once
    there = steps.there(facts, known, lost)  # 3: who counts as a worker
    verdict = _verdict(facts, known, lost, there)  # 4: has the job ended
    size = steps.size(facts, known, there)  # 5: how many are wanted
    leave = steps.leave(facts, known, there, size)  # 6: who leaves, in one order
    lost = steps.avoiding(facts, lost, leave)
    come = steps.come(facts, known, lost, there, size, leave)  # 7: who comes, and when
    taken = Steps(facts, known, lost, there, size, leave, come)  # 8: status, target, events, deadlines
    if terminal := ending.terminal_condition(status):
        return _after_end(taken, terminal)
    if facts.is_undecided:
        return Plan(claims=_for_allocator(taken, status))  # the allocator answers before any action or status
    return _end(taken, verdict) if verdict else _go_on(taken)


def _verdict(facts: Facts, known: Known, lost: Lost, there: There) -> Verdict | None:
    """How the job has ended; None: it has not. The first that applies counts."""
    spec, seen, now = facts.spec, facts.observed, facts.now
    return (
        ending.divergence(seen.pods)
        or ending.success(spec.success_policy, seen.pods, seen.coordination)
        or ending.failure(spec.backoff_limit, lost.count.restarts, lost.losses)
        or counting.streak_verdict(spec, lost.streak, lost.last_failure)
        or ending.overdue(spec, known.start, now)
        or (None if known.finishing else starting.pending_verdict(spec, there.workers, there.units, now))
    )


def refuse(status: JobStatus, observed: Observed, message: str, now: datetime, state: LoopState | None = None) -> Plan:
    """The plan for a job whose spec breaks a rule: report it, count its pods, and change nothing."""
    state, claim = state or LoopState(), ConditionUpdate(ConditionType.PODS_READY, "False", "SpecInvalid", message)
    made = _report(status, claim, observed.job.generation, now, _counted(status, observed, state, now))
    return replace(made, ended=_ended(observed, state), silent_agents=state.silent_agents)


def fault(status: JobStatus, generation: int | None, message: str, retry: float, now: datetime) -> Plan:
    """The plan for a job that the operator cannot process because of its own fault: report it and change nothing."""
    text = f"{message}: a fault of the operator, which has logged it and retries within {retry:g} s; please report it. "
    text += "Meanwhile running workers continue to train; a change of the spec may avoid the fault"
    return _report(
        status, ConditionUpdate(ConditionType.PODS_READY, "False", "OperatorFault", text), generation, now, {}
    )


def deleted(
    status: JobStatus, observed: Observed, finalizers: Sequence[str], now: datetime, state: LoopState | None = None
) -> Plan:
    """The plan for a job that is being deleted and still exists, since ``finalizers`` hold it: it claims nothing any
    more, and its workers leave. Needs neither its spec nor etcd."""
    state, pods = state or LoopState(), observed.pods
    counted = _counted(status, observed, state, now, accelerator_seconds.TrainingWorkers())
    made = _report(status, ending.deleted_job_claim(pods, finalizers, now), observed.job.generation, now, counted)
    return replace(
        made,
        ended=_ended(observed, state),
        events=(),
        delete=ending.deletions_of_deleted_job(pods, finalizers),
        claims=None if observed.share is None else Claims(None, leaving=claims.held(observed)),
        departed=tuple(state.disappeared),
    )


def _ended(observed: Observed, state: LoopState) -> tuple[EndedMember, ...]:
    """Members whose leases end, whatever else is planned: survivors wait for them."""
    return counting.ended_members((*observed.pods, *state.disappeared.values()), observed.coordination)


def _counted(
    status: JobStatus,
    observed: Observed,
    state: LoopState,
    now: datetime,
    place: accelerator_seconds.TrainingWorkers | None = None,
) -> dict[str, Any]:
    """Fields of the status that follow from the pods alone. ``place``: None: as before."""
    live, before = len(replicas.of(p for p in observed.pods if not p.ending)), state.usage or status.accelerator_seconds
    return {
        "replicas": live,
        "ready_replicas": min(status.ready_replicas, live),
        "accelerator_seconds": accelerator_seconds.account(before, observed.pods, place, None, now),
    }


def _report(
    status: JobStatus, claim: ConditionUpdate, generation: int | None, now: datetime, counted: Mapping[str, Any]
) -> Plan:
    """Reports ``claim`` and the fields that were ``counted``; nothing else changes."""
    merged = conditions.merge(status.conditions, [claim], now)
    changed = status.model_copy(update={"conditions": merged, "observed_generation": generation, **counted})
    said = events.events_of(status, changed, None, None, ())
    return Plan(status=if_changed(status, changed), events=said, usage=counted.get("accelerator_seconds"))


# ---- an active job -------------------------------------------------------------------------------------------------
def _go_on(taken: Steps) -> Plan:
    facts, known, size, leave, come = taken.facts, taken.known, taken.size, taken.leave, taken.come
    delete = _unique(
        (
            *_drained(taken),
            *_silenced(taken),
            *starting.late_deletions(p for p in leave.withdrawn if not p.started),
            *ending.ended_deletions(
                facts.observed.pods, frozenset(taken.lost.count.counted), facts.now, facts.state.refusal
            ),
        )
    )
    target = None
    if known.etcd:
        before = known.etcd.target
        target = sizes.target(
            facts.spec, size.desired, before, leave.leaving, facts.observed.pods, stop=False, above=known.floor
        )
    status = status_of(taken, come.create, come.slots, come.wait)
    made = _finish_plan(
        taken, status, target, create=come.create, delete=delete, due=_deadlines(taken), lost=taken.lost.count.fresh
    )
    return replace(
        made,
        charges=come.charges,
        slots=come.slots if facts.spec.group_size > 1 else (),
        workers=_workers(taken),
        probe=status.next_ordinal if come.asks else None,
        marks=protection.marks(facts.spec.template, facts.observed.pods, taken.there.budget),
        silent_agents=taken.lost.silent_agents,
        node_losses=taken.lost.exclusions.losses,
    )


def _drained(taken: Steps) -> Iterable[Deletion]:
    """Leaving workers to delete. A worker asked in this pass must first be able to read it, unless it never started."""
    for pod in taken.facts.observed.pods:
        if pod.name not in taken.leave.leaving or pod.terminating:
            continue
        known = taken.known.etcd is not None and (pod.name in taken.known.draining or not pod.started)
        if known and (deletion := leavers.released(pod, taken.known.members, taken.due(pod), taken.facts.now)):
            yield deletion


def _silenced(taken: Steps) -> Iterable[Deletion]:
    """Workers on silent nodes, so that they do not return beside their replacements. Never forced: their processes may
    still run, and their node accepts no other pods meanwhile."""
    for pod in taken.facts.observed.pods:
        if pod.name in taken.lost.silent and not pod.terminating and pod.name not in taken.known.draining:
            hung = pod.uid in taken.lost.overdue
            why = "its agent does not answer" if hung else "lost with its node"
            yield Deletion(pod.name, pod.uid, why, Still.THERE if hung else Still.NOT_READY)


# ---- a job that ends -----------------------------------------------------------------------------------------------
def _end(taken: Steps, verdict: Verdict) -> Plan:
    status = status_of(taken, (), (), None)
    past = {ConditionType.GROWN, ConditionType.STATE_PROTECTED}  # an ended job does not grow, and holds no state
    lasting = [c for c in status.conditions if c.type not in past]
    merged = conditions.merge(lasting, conditions.ended(verdict), taken.facts.now)
    status = status.model_copy(
        update={
            "conditions": merged,
            "phase": verdict.condition.value,
            "ready_replicas": 0,  # no generation trains any more, though scripts may still run
            "leaving": [],
            "completion_time": taken.facts.now.isoformat(),
            "accelerator_seconds": accelerator_seconds.dissolved(status.accelerator_seconds),
            "unhealthy_workers": [],
            "spares": None,
            "etcd": "",
        }
    )
    return _settle(taken, status, verdict.condition, taken.lost.count.fresh)


def _after_end(taken: Steps, terminal: ConditionType) -> Plan:
    old, seen = taken.facts.status, taken.facts.observed
    status = old.model_copy(
        update={
            **_counted(old, seen, taken.facts.state, taken.facts.now, accelerator_seconds.TrainingWorkers()),
            "leaving": [],
            "counted_failures": [uid for uid in old.counted_failures if uid in {p.uid for p in seen.pods}],
            "completion_time": old.completion_time or taken.facts.now.isoformat(),
            "observed_generation": seen.job.generation,
        }
    )
    return _settle(taken, status, terminal)


def _settle(taken: Steps, status: JobStatus, verdict: ConditionType, lost: Iterable[Loss] = ()) -> Plan:
    """Clean up after the end; a failed job's workers are first asked to save and leave."""
    assert status.completion_time is not None
    spec, pods, known, now = taken.facts.spec, taken.facts.observed.pods, taken.known, taken.facts.now
    completion = datetime.fromisoformat(status.completion_time)
    delete = ending.finished_deletions(pods, spec.clean_pod_policy, verdict, completion, now)
    target = None
    if verdict is ConditionType.FAILED and known.etcd is not None:
        everyone = {p.name for p in pods if not p.over}
        target = sizes.target(spec, 0, known.etcd.target, everyone, pods, stop=True, above=known.floor)
    expiry = ending.expiry(spec.ttl_seconds_after_finished, completion)
    waiting = any(not p.over and not p.terminating for p in pods)
    due = [expiry, ending.finish_deadline(completion) if waiting else None]
    expired = expiry is not None and now >= expiry
    return _finish_plan(taken, status, target, delete=delete, due=due, delete_job=expired, lost=lost)


# ---- common --------------------------------------------------------------------------------------------------------
def _deadlines(taken: Steps) -> list[datetime | None]:
    """Times at which an active job needs another pass even without a change."""
    facts, known, leave, workers = taken.facts, taken.known, taken.leave, taken.there.workers
    pods, troubles = facts.observed.pods, taken.there.troubles
    return [
        taken.come.wait,
        ending.deadline(facts.spec, known.start),
        leave.rollout.until,
        taken.lost.exclusions.until,
        starting.next_pending_deadline(workers, facts.spec.pending_deadline_seconds),
        known.lost_since + data_loss.PATIENCE if known.lost_since else None,
        starting.next_silent_deadline(taken.lost.silent_agents),
        *(due(p) if p.terminating else taken.due(p) for p in pods if p.name in leave.leaving or p.terminating),
        *(ending.sidecar_deadline(p) for p in pods if p.ending and not p.over),
        *(starting.report_due(p, t) for p in workers if (t := troubles.get(p.name))),
    ]


def _finish_plan(
    taken: Steps,
    status: JobStatus,
    target: Target | None,
    *,
    create: tuple[int, ...] = (),
    delete: tuple[Deletion, ...] = (),
    due: Iterable[datetime | None] = (),
    delete_job: bool = False,
    lost: Iterable[Loss] = (),
) -> Plan:
    before = taken.known.etcd.target if taken.known.etcd else None
    target = None if target == before else target
    written = if_changed(taken.facts.status, status)
    held = held_until(taken, written)
    moments = [t for t in [*due, held] if t and t > taken.facts.now]
    published = events.events_of(taken.facts.status, status, before, target, lost)
    going = {d.uid for d in delete}
    pods, draining = taken.facts.observed.pods, taken.known.draining
    left = [p.name for p in pods if p.uid in going and p.name in draining and ending.is_drained(p)]
    if left:
        published = (*published, JobEvent("Drained", f"left at a step boundary: {', '.join(left)}"))
    return Plan(
        status=None if held else written,
        ended=_ended(taken.facts.observed, taken.facts.state),
        target=target,
        create=create,
        # Needed workers come first; beyond the desired number a new worker is a spare.
        stand_by=create[max(taken.size.desired * taken.facts.spec.group_size - len(taken.there.workers), 0) :]
        if create and taken.size.spares
        else (),
        delete=delete,
        delete_job=delete_job,
        events=published,
        keep_off=taken.lost.exclusions.nodes,
        requeue_after=(min(moments) - taken.facts.now).total_seconds() if moments else None,
        usage=accelerator_seconds.observed(status.accelerator_seconds),
        claims=_for_allocator(taken, status),
        budget=_budget(taken, status),
        gang=_wants_gang(taken, status),
        departed=tuple(taken.facts.state.disappeared),
    )


def _budget(taken: Steps, status: JobStatus) -> DisruptionBudget | None:
    """The disruption budget to write; ``status`` as just planned."""
    before = taken.facts.state.budget
    if ending.terminal_condition(status) is not None:
        return DisruptionBudget() if before and before.ordinals else None
    if before is None and taken.facts.status.generation is None:
        before = DisruptionBudget()  # the job has not trained yet
    return None if taken.there.budget == before else taken.there.budget


def _workers(taken: Steps) -> WorkerCount | None:
    """The job's set of workers, to be written. A job that has and gets none keeps its last number."""
    state, create, pods = taken.facts.state, taken.come.create, taken.facts.observed.pods
    wanted, coming = taken.size.desired * taken.facts.spec.group_size, 0 if state.refusal else len(create)
    number = protection.expected(wanted, pods, taken.lost.silent, coming) or min(len(create), 1)
    before = state.workers.number if state.workers else None
    if number in {0, before}:
        return None
    fewer = before is not None and number < min(before, wanted)  # else pods leave, or come
    return WorkerCount(number, next((p for p in taken.there.workers if fewer), None))


def _wants_gang(taken: Steps, status: JobStatus) -> bool:
    """Whether the scheduler is to know the job's gang: it wants workers, or has some; ``status`` as just planned."""
    wants = not taken.facts.spec.suspend and ending.terminal_condition(status) is None
    return wants or any(not p.over for p in taken.facts.observed.pods)


def _for_allocator(taken: Steps, status: JobStatus) -> Claims | None:
    """The job's claims for the allocator; ``status`` as just planned."""
    if taken.facts.observed.share is None:
        return None
    wants = not taken.facts.spec.suspend and not taken.known.finishing and ending.terminal_condition(status) is None
    victims = {p.name for p in taken.leave.victims}
    workers = [p for p in taken.there.workers if p.name not in victims]
    refusal, paced = taken.size.refusal, taken.come.paced is not None
    hitch, known = None if refusal else taken.facts.state.refusal, taken.come.admitted
    is_recent = known is not None and known.is_recent(taken.facts.now)
    creation = claims.Creation(known, refusal, paced, hitch, taken.facts.version, is_recent)
    return claims.claims(taken.facts.spec, status, taken.facts.observed, workers, creation if wants else None)


def _unique(deletions: Iterable[Deletion]) -> tuple[Deletion, ...]:
    """Each pod once, with the first reason."""
    by_uid: dict[str, Deletion] = {}
    for each in deletions:
        by_uid.setdefault(each.uid, each)
    return tuple(by_uid.values())
