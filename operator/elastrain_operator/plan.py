"""Spec, status and what is observed → what to do. Pure: same input, same plan, and nothing happens here."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from elastrain.api.job import ConditionType, JobSpec, JobStatus
from elastrain.api.records import Target
from elastrain_operator.allocation.model import Claims
from elastrain_operator.context import Sight
from elastrain_operator.model import Deletion, Loss, Notice, Observed, Plan
from elastrain_operator.policy.ending import clean, success
from elastrain_operator.policy.ending import ttl as ttl_policy
from elastrain_operator.policy.ending import verdict as verdicts
from elastrain_operator.policy.ending.verdict import Verdict
from elastrain_operator.policy.losses import arrival, pending, restarts, streak
from elastrain_operator.policy.report import accelerator_seconds, conditions, events
from elastrain_operator.policy.report.conditions import Claim
from elastrain_operator.policy.size import claims as claims_policy
from elastrain_operator.policy.size import drain
from elastrain_operator.policy.size import target as targets
from elastrain_operator.policy.size import workers as scale
from elastrain_operator.status import books, held_until, if_changed, status_of

DRAIN_EXTRA = 30.0
"""Seconds beyond a pod's own grace period that a worker may take to leave."""
STATUS_INTERVAL = 5.0
"""Seconds between two writes of the status that tell nothing urgent (of a few jobs; of many: loops.STATUS_SHARE)."""
REFUSAL_DELAYS = (2.0, 5.0, 15.0, 60.0)
"""Seconds before a pod that the API server refused is tried again: by number of refusals in a row."""


def plan(spec: JobSpec, status: JobStatus, observed: Observed, now: datetime, drain_extra: float = DRAIN_EXTRA) -> Plan:
    """What the operator should do about one job now. Executed by ``apply.py``; ``now`` is timezone-aware.

    What holds: nothing that needs membership is done while etcd is not known; every ended pod is counted before it is
    deleted; a worker of the generation in force is deleted only after it was asked to leave and has left, or its drain
    deadline has passed, or the job has ended.
    """
    sight = Sight(spec, status, observed, now, drain_extra)
    standing = verdicts.standing(status)
    if standing:
        return _after_end(sight, standing)
    if sight.is_undecided:
        return Plan(claims=_for_allocator(sight, status))  # it is heard before anything is said or done
    verdict = (
        success.verdict(spec.success_policy, observed.pods, observed.coordination)
        or verdicts.failure(spec.backoff_limit, sight.count.restarts, sight.losses)
        or streak.verdict(spec, sight.streak)
        or verdicts.overdue(spec, sight.start, now)
        or (None if sight.finishing else pending.verdict(spec, sight.workers, now))
    )
    return _end(sight, verdict) if verdict else _go_on(sight)


def refuse(status: JobStatus, generation: int | None, message: str, now: datetime) -> Plan:
    """The plan for a job whose spec breaks a rule: say so and touch nothing."""
    return _only_say(status, generation, Claim(ConditionType.PODS_READY, "False", "SpecInvalid", message), now)


def fault(status: JobStatus, generation: int | None, message: str, retry: float, now: datetime) -> Plan:
    """The plan for a job that the operator fails at by a fault of its own: say so and touch nothing."""
    words = (
        f"{message}: a fault of the operator, which has logged it and tries again every {retry:g} s at most; please "
    )
    words += "report it. Until then running workers train on; a change of the spec may avoid it"
    return _only_say(status, generation, Claim(ConditionType.PODS_READY, "False", "OperatorFault", words), now)


def _only_say(status: JobStatus, generation: int | None, claim: Claim, now: datetime) -> Plan:
    changed = status.model_copy(
        update={
            "conditions": conditions.merge(status.conditions, [claim], generation, now),
            "observed_generation": generation,
        }
    )
    return Plan(status=if_changed(status, changed), notices=events.notices(status, changed, None, None, ()))


# ---- a job that goes on --------------------------------------------------------------------------------------------
def _go_on(sight: Sight) -> Plan:
    spec, seen, now = sight.spec, sight.seen, sight.now
    wait = _creation_wait(sight)
    create = () if wait or sight.etcd is None or sight.finishing else _create(sight)
    ended = clean.ended(seen.pods, frozenset(sight.count.counted), now)
    delete = _unique((*_drained(sight), *_silenced(sight), *pending.deletions(sight.late), *ended))
    target = targets.target(spec, sight.desired, sight.etcd.target, sight.leaving, stop=False) if sight.etcd else None
    status = status_of(sight, create, wait)
    return _finish_plan(
        sight, status, target, create=create, delete=delete, due=_deadlines(sight, wait), lost=sight.count.fresh
    )


def _create(sight: Sight) -> tuple[int, ...]:
    missing = max(sight.desired + sight.spares - len(sight.workers), 0) or sight.rollout.create
    if sight.seen.refusal:
        missing = min(missing, 1)  # one pod tells whether the API server has changed its mind
    return scale.ordinals(missing, sight.seen.unborn, sight.seen.pods, sight.status.next_ordinal)


def _creation_wait(sight: Sight) -> datetime | None:
    """Until when no worker is created; None: no need to wait."""
    waits = [restarts.not_before(sight.count.restarts, sight.seen.pods, sight.now)]
    waits.append(streak.not_before(sight.spec, sight.streak))
    if sight.withdrawal:
        waits.append(datetime.fromisoformat(sight.withdrawal.until))
    refusal = sight.seen.refusal
    if refusal and refusal.generation == sight.seen.job.generation:
        delay = REFUSAL_DELAYS[min(refusal.attempts, len(REFUSAL_DELAYS)) - 1]
        waits.append(refusal.at + timedelta(seconds=delay))
    latest = max((w for w in waits if w), default=None)
    return latest if latest and latest > sight.now else None


def _drained(sight: Sight) -> Iterable[Deletion]:
    """Leaving workers that may go. Those asked just now must first be able to read it, unless they never started."""
    for pod in sight.seen.pods:
        if pod.name not in sight.leaving or pod.terminating:
            continue
        known = sight.etcd is not None and (pod.name in sight.asked or not pod.started)
        why = drain.released(pod, sight.members, sight.due(pod), sight.now) if known else None
        if why:
            yield Deletion(pod.name, pod.uid, why)


def _silenced(sight: Sight) -> Iterable[Deletion]:
    """Workers on silent nodes, so that they do not come back beside their replacement. Never forced: nobody knows
    whether their processes have ended, and their node takes no other pods meanwhile."""
    for pod in sight.seen.pods:
        if pod.name in sight.silent and not pod.terminating and pod.name not in sight.asked:
            yield Deletion(pod.name, pod.uid, "lost with its node")


# ---- a job that ends -----------------------------------------------------------------------------------------------
def _end(sight: Sight, verdict: Verdict) -> Plan:
    status = status_of(sight, (), None)
    lasting = [c for c in status.conditions if c.type != ConditionType.GROWN]  # an ended job does not grow
    merged = conditions.merge(lasting, conditions.ended(verdict), sight.seen.job.generation, sight.now)
    status = status.model_copy(
        update={
            "conditions": merged,
            "phase": verdict.condition.value,
            "leaving": [],
            "completion_time": sight.now.isoformat(),
            "accelerator_seconds": accelerator_seconds.dissolved(status.accelerator_seconds),
            "unhealthy_workers": [],
            "spares": None,
        }
    )
    return _settle(sight, status, verdict.condition, sight.count.fresh)


def _after_end(sight: Sight, standing: ConditionType) -> Plan:
    old, seen = sight.status, sight.seen
    live = sum(not p.ending for p in seen.pods)
    status = old.model_copy(
        update={
            "replicas": live,
            "ready_replicas": min(old.ready_replicas, live),
            "leaving": [],
            "counted_failures": [uid for uid in old.counted_failures if uid in {p.uid for p in seen.pods}],
            "completion_time": old.completion_time or sight.now.isoformat(),
            "accelerator_seconds": accelerator_seconds.account(
                books(sight), seen.pods, accelerator_seconds.Place(), None, sight.now
            ),
            "observed_generation": seen.job.generation,
        }
    )
    return _settle(sight, status, standing)


def _settle(sight: Sight, status: JobStatus, verdict: ConditionType, lost: Iterable[Loss] = ()) -> Plan:
    """Clean up after the end; a failed job's workers are told to save and leave first."""
    assert status.completion_time is not None
    completion = datetime.fromisoformat(status.completion_time)
    delete = clean.finished(sight.seen.pods, sight.spec.clean_pod_policy, verdict, completion, sight.now)
    target = None
    if verdict is ConditionType.FAILED and sight.etcd is not None:
        everybody = {p.name for p in sight.seen.pods if not p.over}
        target = targets.target(sight.spec, 0, sight.etcd.target, everybody, stop=True)
    expiry = ttl_policy.expiry(sight.spec.ttl_seconds_after_finished, completion)
    expired = expiry is not None and sight.now >= expiry
    waiting = any(not p.over and not p.terminating for p in sight.seen.pods)
    due = [expiry, clean.finish_deadline(completion) if waiting else None]
    return _finish_plan(sight, status, target, delete=delete, due=due, delete_job=expired, lost=lost)


# ---- common --------------------------------------------------------------------------------------------------------
def _deadlines(sight: Sight, wait: datetime | None) -> list[datetime | None]:
    """Moments at which a job that goes on has to be looked at again without anything having happened."""
    drains = [sight.due(p) for p in sight.seen.pods if p.name in sight.leaving and not p.terminating]
    sidecars = [clean.sidecar_deadline(p) for p in sight.seen.pods if p.ending and not p.over]
    patience = [arrival.worth_telling_at(p, t) for p in sight.workers if (t := sight.troubles.get(p.name))]
    limit = sight.spec.pending_deadline_seconds
    clocks = [sight.rollout.until, sight.ledger.until, pending.next_deadline(sight.workers, limit)]
    return [wait, verdicts.deadline(sight.spec, sight.start), *clocks, *drains, *sidecars, *patience]


def _finish_plan(
    sight: Sight,
    status: JobStatus,
    target: Target | None,
    *,
    create: tuple[int, ...] = (),
    delete: tuple[Deletion, ...] = (),
    due: Iterable[datetime | None] = (),
    delete_job: bool = False,
    lost: Iterable[Loss] = (),
) -> Plan:
    before = sight.etcd.target if sight.etcd else None
    target = None if target == before else target
    written = if_changed(sight.status, status)
    held = held_until(sight, written)
    moments = [t for t in [*due, held] if t and t > sight.now]
    told = events.notices(sight.status, status, before, target, lost)
    going = {d.uid for d in delete}
    left = [p.name for p in sight.seen.pods if p.uid in going and p.name in sight.asked and clean.is_drained(p)]
    if left:
        told = (*told, Notice("Drained", f"left at a step boundary: {', '.join(left)}"))
    return Plan(
        status=None if held else written,
        target=target,
        create=create,
        # Who is needed comes first; beyond the wanted number a new worker is a spare.
        stand_by=create[max(sight.desired - len(sight.workers), 0) :] if create and sight.spares else (),
        delete=delete,
        delete_job=delete_job,
        notices=told,
        keep_off=sight.ledger.nodes,
        requeue_after=(min(moments) - sight.now).total_seconds() if moments else None,
        books=status.accelerator_seconds,
        claims=_for_allocator(sight, status),
    )


def _for_allocator(sight: Sight, status: JobStatus) -> Claims | None:
    """What the allocator is told; ``status`` as just planned."""
    if sight.seen.share is None:
        return None
    wants = not sight.spec.suspend and not sight.finishing and verdicts.standing(status) is None
    workers = [p for p in sight.workers if p not in sight.victims]
    return claims_policy.claims(sight.spec, status, sight.seen, workers, wants)


def _unique(deletions: Iterable[Deletion]) -> tuple[Deletion, ...]:
    """Each pod once, with the first reason."""
    by_uid: dict[str, Deletion] = {}
    for deletion in deletions:
        by_uid.setdefault(deletion.uid, deletion)
    return tuple(by_uid.values())
