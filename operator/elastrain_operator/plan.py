"""Spec, status and what is observed → what to do. Pure: same input, same plan, and nothing happens here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from elastrain.api import names
from elastrain.api.job import AcceleratorSeconds, ConditionType, JobSpec, JobStatus, LossStreak, Withdrawal
from elastrain.api.records import Target
from elastrain_operator.allocation.model import Claims
from elastrain_operator.model import Coordination, Deletion, Loss, Notice, Observed, Outage, Plan, Pod
from elastrain_operator.policy import claims as claims_policy
from elastrain_operator.policy import (
    clean,
    conditions,
    drain,
    exclusion,
    failures,
    health,
    leaving,
    ledger,
    losses,
    news,
    pace,
    pending,
    progress,
    restarts,
    rollout,
    scale,
    size,
    streak,
    success,
    targets,
)
from elastrain_operator.policy import ttl as ttl_policy
from elastrain_operator.policy import verdict as verdicts
from elastrain_operator.policy import victims as victims_policy
from elastrain_operator.policy.conditions import Claim
from elastrain_operator.policy.rollout import Rollout, Scene
from elastrain_operator.policy.verdict import Verdict

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
    sight = _Sight(spec, status, observed, now, drain_extra)
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
    return Plan(status=_if_changed(status, changed), notices=news.notices(status, changed, None, None, ()))


@dataclass(frozen=True)
class _Sight:
    """The input of a plan and what follows from it, each computed once."""

    spec: JobSpec
    status: JobStatus
    seen: Observed
    now: datetime
    drain_extra: float

    @cached_property
    def etcd(self) -> Coordination | None:
        """The job's records, None if etcd is not known."""
        return self.seen.coordination

    @cached_property
    def members(self) -> Coordination | None:
        """The same, but None also where records that must be there are not: etcd has lost its data, and the absence
        of a member proves nothing."""
        etcd = self.etcd
        lost_data = etcd is not None and etcd.generation is None and self.status.generation is not None
        return None if lost_data else etcd

    @cached_property
    def since(self) -> dict[str, datetime]:
        """When each leaving worker (pod name) was asked."""
        return leaving.since(self.status)

    @cached_property
    def asked(self) -> frozenset[str]:
        """Workers already asked to leave that still exist (names). The target keeps them until the pod is gone."""
        named = set(self.etcd.target.leaving if self.etcd and self.etcd.target else ()) | set(self.since)
        return frozenset(named & {p.name for p in self.seen.pods})

    @cached_property
    def losses(self) -> tuple[Loss, ...]:
        return losses.losses(self.seen.pods, self.members, self.asked)

    @cached_property
    def count(self) -> restarts.Count:
        return restarts.count(self.status.restarts, self.status.counted_failures, self.losses, self.seen.pods)

    @cached_property
    def silent(self) -> frozenset[str]:
        """Workers whose node and lease are silent (names)."""
        return frozenset(p.name for p in self.seen.pods if losses.is_silent(p, self.members))

    @cached_property
    def workers(self) -> tuple[Pod, ...]:
        return scale.active(self.seen.pods, self.asked, self.silent)

    @cached_property
    def desired(self) -> int:
        """Workers wanted now."""
        return size.wanted(self.spec, self.status, self.seen.share)

    @property
    def is_undecided(self) -> bool:
        """Whether the job is new and the allocator has not seen it yet: it answers within a second or so."""
        share, new = self.seen.share, self.status.desired_replicas is None and not self.seen.pods
        return new and share is not None and share.size is None and not share.blind and not self.spec.suspend

    @cached_property
    def victims(self) -> tuple[Pod, ...]:
        """Workers to be asked to leave now; nobody while etcd cannot tell them, or when they are about to end."""
        if self.etcd is None or self.finishing:
            return ()
        chosen = self.rollout.leave
        others = [p for p in self.workers if p not in chosen]
        most, minimum = self.desired + self.rollout.extra, self.spec.min_replicas
        return (*chosen, *victims_policy.choose(others, most, minimum, self.members, self.seen.share))

    @cached_property
    def rollout(self) -> Rollout:
        """What is to be done about workers of another version of the template."""
        if self.etcd is None or self.finishing:
            return Rollout()
        refusal = self.seen.refusal
        return rollout.rollout(
            Scene(
                workers=self.workers,
                pods=self.seen.pods,
                version=rollout.version(self.spec.template),
                desired=self.desired,
                minimum=self.spec.min_replicas,
                at_a_time=self.spec.max_unavailable,
                leaving=sum(not p.over for p in self.seen.pods if p.name in self.asked),
                refusal=refusal if refusal and refusal.generation == self.seen.job.generation else None,
                members=self.members,
                now=self.now,
            )
        )

    @cached_property
    def step(self) -> int | None:
        """Committed steps, as last reported."""
        return self.etcd.progress.step if self.etcd and self.etcd.progress else self.status.step

    @cached_property
    def streak(self) -> LossStreak | None:
        return streak.update(self.status.loss_streak, self.count.fresh, self.step, self.now)

    @cached_property
    def late(self) -> tuple[Pod, ...]:
        """Workers that have not started in time and are to go; a verdict comes first where they are needed."""
        workers = [p for p in self.workers if p not in self.victims]
        return pending.late(workers, self.spec.pending_deadline_seconds, self.now)

    @cached_property
    def withdrawal(self) -> Withdrawal | None:
        fresh = pending.withdraw(self.late, self.spec.pending_deadline_seconds, self.now)
        return fresh or pending.standing(self.status.withdrawal, self.workers, self.spec.min_replicas, self.now)

    @cached_property
    def ledger(self) -> exclusion.Ledger:
        """Nodes that new workers keep off, with what was lost just now."""
        old, cooldown = self.status, self.spec.node_cooldown_seconds
        return exclusion.update(old.excluded_nodes, old.node_losses, self.count.fresh, cooldown, self.now)

    @cached_property
    def finishing(self) -> bool:
        return verdicts.finishing(self.seen.pods, self.etcd)

    @cached_property
    def leaving(self) -> frozenset[str]:
        return self.asked | {p.name for p in self.victims}

    @cached_property
    def start(self) -> datetime | None:
        """Since when the job has been active, as batch/v1 counts it: from creation or from the end of a suspension."""
        if self.spec.suspend:
            return None
        return datetime.fromisoformat(self.status.start_time) if self.status.start_time else self.now

    def due(self, pod: Pod) -> datetime:
        """When a leaving worker is deleted whatever it does."""
        return drain.deadline(pod, self.since.get(pod.name, self.now), self.drain_extra)


# ---- a job that goes on --------------------------------------------------------------------------------------------
def _go_on(sight: _Sight) -> Plan:
    spec, seen, now = sight.spec, sight.seen, sight.now
    wait = _creation_wait(sight)
    create = () if wait or sight.etcd is None or sight.finishing else _create(sight)
    ended = clean.ended(seen.pods, frozenset(sight.count.counted), now)
    delete = _unique((*_drained(sight), *_silenced(sight), *pending.deletions(sight.late), *ended))
    target = targets.target(spec, sight.desired, sight.etcd.target, sight.leaving, stop=False) if sight.etcd else None
    status = _status(sight, create, wait)
    return _finish_plan(
        sight, status, target, create=create, delete=delete, due=_deadlines(sight, wait), lost=sight.count.fresh
    )


def _create(sight: _Sight) -> tuple[int, ...]:
    missing = max(sight.desired - len(sight.workers), 0) or sight.rollout.create
    if sight.seen.refusal:
        missing = min(missing, 1)  # one pod tells whether the API server has changed its mind
    return scale.ordinals(missing, sight.seen.unborn, sight.seen.pods, sight.status.next_ordinal)


def _creation_wait(sight: _Sight) -> datetime | None:
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


def _drained(sight: _Sight) -> Iterable[Deletion]:
    """Leaving workers that may go. Those asked just now must first be able to read it, unless they never started."""
    for pod in sight.seen.pods:
        if pod.name not in sight.leaving or pod.terminating:
            continue
        known = sight.etcd is not None and (pod.name in sight.asked or not pod.started)
        why = drain.released(pod, sight.members, sight.due(pod), sight.now) if known else None
        if why:
            yield Deletion(pod.name, pod.uid, why)


def _silenced(sight: _Sight) -> Iterable[Deletion]:
    """Workers on silent nodes, so that they do not come back beside their replacement. Never forced: nobody knows
    whether their processes have ended, and their node takes no other pods meanwhile."""
    for pod in sight.seen.pods:
        if pod.name in sight.silent and not pod.terminating and pod.name not in sight.asked:
            yield Deletion(pod.name, pod.uid, "lost with its node")


# ---- a job that ends -----------------------------------------------------------------------------------------------
def _end(sight: _Sight, verdict: Verdict) -> Plan:
    status = _status(sight, (), None)
    lasting = [c for c in status.conditions if c.type != ConditionType.GROWN]  # an ended job does not grow
    merged = conditions.merge(lasting, conditions.ended(verdict), sight.seen.job.generation, sight.now)
    status = status.model_copy(
        update={
            "conditions": merged,
            "phase": verdict.condition.value,
            "leaving": [],
            "completion_time": sight.now.isoformat(),
            "accelerator_seconds": ledger.dissolved(status.accelerator_seconds),
            "unhealthy_workers": [],
        }
    )
    return _settle(sight, status, verdict.condition, sight.count.fresh)


def _after_end(sight: _Sight, standing: ConditionType) -> Plan:
    old, seen = sight.status, sight.seen
    live = sum(not p.ending for p in seen.pods)
    status = old.model_copy(
        update={
            "replicas": live,
            "ready_replicas": min(old.ready_replicas, live),
            "leaving": [],
            "counted_failures": [uid for uid in old.counted_failures if uid in {p.uid for p in seen.pods}],
            "completion_time": old.completion_time or sight.now.isoformat(),
            "accelerator_seconds": ledger.account(_books(sight), seen.pods, ledger.Place(), None, sight.now),
            "observed_generation": seen.job.generation,
        }
    )
    return _settle(sight, status, standing)


def _settle(sight: _Sight, status: JobStatus, verdict: ConditionType, lost: Iterable[Loss] = ()) -> Plan:
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
def _status(sight: _Sight, create: tuple[int, ...], wait: datetime | None) -> JobStatus:
    """The status of a job that has not ended, anew from what is seen. What etcd told stays while it is silent."""
    old, seen, etcd, spec = sight.status, sight.seen, sight.etcd, sight.spec
    known = sight.members
    generation, ready = progress.in_force(old.generation, known) if known else (old.generation, old.ready_replicas)
    report = etcd.progress if etcd else None
    live = sum(not p.ending for p in seen.pods)
    picture = conditions.Picture(
        desired=sight.desired,
        ready=ready,
        workers=tuple(p for p in sight.workers if p not in sight.victims and p not in sight.late),
        draining=sum(not p.over for p in seen.pods if p.name in sight.leaving),
        generation=generation,
        pending_generation=_pending(etcd, generation.number if generation else None),
        progress=report,
        outage=None if etcd else seen.outage or Outage(),
        has_checkpoints=spec.checkpoint is not None,
        suspended=spec.suspend,
        finishing=sight.finishing,
        refusal=seen.refusal,
        withdrawal=sight.withdrawal,
        waits_until=wait,
        share=seen.share,
    )
    claims, unhealthy = [*conditions.active(picture, sight.now), *_claims(sight)], old.unhealthy_workers
    if known:
        unhealthy = health.unhealthy(unhealthy, known, sight.now)
        claims.append(health.claim(unhealthy, generation))
    grown = size.grown(old.conditions, spec.suspend, seen.share, sight.desired, spec.desired_replicas)
    if grown and not sight.finishing:
        claims.append(grown)
    merged = conditions.merge(old.conditions, claims, seen.job.generation, sight.now)
    place = ledger.place(generation, known, sight.finishing) if known else None
    following = max([old.next_ordinal, *(n + 1 for n in create), *(p.ordinal + 1 for p in seen.pods)])
    return JobStatus(
        phase=conditions.phase(merged, ready),
        conditions=merged,
        replicas=live,
        desired_replicas=sight.desired,
        ready_replicas=ready,
        selector=f"{names.LABEL_JOB_UID}={seen.job.uid}",
        generation=generation,
        step=sight.step,
        progress=pace.progress_status(old.progress, report, sight.now),
        last_rescale=progress.last_rescale(old.last_rescale, etcd, sight.now) if etcd else old.last_rescale,
        accelerator_seconds=ledger.account(_books(sight), seen.pods, place, report, sight.now),
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


def _claims(sight: _Sight) -> Iterable[Claim]:
    """Conditions that only some jobs have."""
    old, total = sight.status.conditions, len(sight.workers)
    if sight.etcd is not None:
        was_told = any(c.type == ConditionType.UP_TO_DATE for c in old)
        yield from rollout.claim(sight.rollout, total, was_told, sight.spec.max_unavailable)
    yield from exclusion.claim(sight.ledger, old)


def _books(sight: _Sight) -> AcceleratorSeconds | None:
    """The ledger as this operator last knew it, else as the status has it."""
    return sight.seen.books or sight.status.accelerator_seconds


def _pending(etcd: Coordination | None, in_force: int | None) -> int | None:
    newest = etcd.generation if etcd else None
    return newest.number if newest and newest.number != in_force else None


def _deadlines(sight: _Sight, wait: datetime | None) -> list[datetime | None]:
    """Moments at which a job that goes on has to be looked at again without anything having happened."""
    drains = [sight.due(p) for p in sight.seen.pods if p.name in sight.leaving and not p.terminating]
    sidecars = [clean.sidecar_deadline(p) for p in sight.seen.pods if p.ending and not p.over]
    patience = [p.created + timedelta(seconds=p.trouble.patience) for p in sight.workers if p.trouble]
    limit = sight.spec.pending_deadline_seconds
    clocks = [sight.rollout.until, sight.ledger.until, pending.next_deadline(sight.workers, limit)]
    return [wait, verdicts.deadline(sight.spec, sight.start), *clocks, *drains, *sidecars, *patience]


def _finish_plan(
    sight: _Sight,
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
    written = _if_changed(sight.status, status)
    held_until = _hold(sight, written)
    moments = [t for t in [*due, held_until] if t and t > sight.now]
    told = news.notices(sight.status, status, before, target, lost)
    going = {d.uid for d in delete}
    left = [p.name for p in sight.seen.pods if p.uid in going and p.name in sight.asked and clean.is_drained(p)]
    if left:
        told = (*told, Notice("Drained", f"left at a step boundary: {', '.join(left)}"))
    return Plan(
        status=None if held_until else written,
        target=target,
        create=create,
        delete=delete,
        delete_job=delete_job,
        notices=told,
        keep_off=sight.ledger.nodes,
        requeue_after=(min(moments) - sight.now).total_seconds() if moments else None,
        books=status.accelerator_seconds,
        claims=_for_allocator(sight, status),
    )


def _for_allocator(sight: _Sight, status: JobStatus) -> Claims | None:
    """What the allocator is told; ``status`` as just planned."""
    if sight.seen.share is None:
        return None
    wants = not sight.spec.suspend and not sight.finishing and verdicts.standing(status) is None
    workers = [p for p in sight.workers if p not in sight.victims]
    return claims_policy.claims(sight.spec, status, sight.seen, workers, wants)


def _if_changed(old: JobStatus, new: JobStatus) -> JobStatus | None:
    """``new``, unless nothing has changed but that time has passed for the ledger."""
    before, now = old.accelerator_seconds, new.accelerator_seconds
    if ledger.is_news(before, now) or _with_books(new, before) != old:
        return _with_books(new, ledger.rounded(now))
    return None


def _with_books(status: JobStatus, books: AcceleratorSeconds | None) -> JobStatus:
    return status.model_copy(update={"accelerator_seconds": books})


def _hold(sight: _Sight, written: JobStatus | None) -> datetime | None:
    """Until when a status that tells nothing urgent is held back; None: write it now, if at all."""
    last = sight.seen.status_written
    if written is None or last is None or _essence(written) != _essence(sight.status):
        return None
    until = last + timedelta(seconds=sight.seen.status_interval)
    return until if until > sight.now else None


def _essence(status: JobStatus) -> JobStatus:
    """A status without what can wait: step and progress, the ledger, what conditions that hold say about them, the
    numbers of idle accelerators, and how many pods there are (while they start; every loss and every change of the
    generation is in other fields, too)."""
    quiet = [
        c.model_copy(update={"message": ""}) if c.status == "True" or c.type == ConditionType.GROWN else c
        for c in status.conditions
    ]
    waits = {"step": None, "progress": None, "accelerator_seconds": None, "replicas": 0}
    return status.model_copy(update={**waits, "conditions": quiet})


def _unique(deletions: Iterable[Deletion]) -> tuple[Deletion, ...]:
    """Each pod once, with the first reason."""
    by_uid: dict[str, Deletion] = {}
    for deletion in deletions:
        by_uid.setdefault(deletion.uid, deletion)
    return tuple(by_uid.values())
