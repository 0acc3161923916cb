"""Whether a job has ended, and how; and what is deleted then. Pure.

Kubernetes' garbage collector deletes a job's pods only when the job itself is gone, and a foreign finalizer may hold it
for days. The deletion cannot be taken back, so the workers leave at once, as they would without that finalizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from elastrain.api.names import DIVERGED, headcount
from elastrain.api.records import Outcome, Phase
from elastrain_operator.facts import (
    Cause,
    ConditionUpdate,
    Coordination,
    Deletion,
    Loss,
    Pod,
    Refusal,
    RefusalKind,
    Verdict,
)
from elastrain_operator.pod import leaving
from elastrain_operator.policy.losses import counting
from elastrain_operator.policy.losses.causes import judge
from elastrain_resource.job import CleanPodPolicy, ConditionType, JobSpec, JobStatus, RestartCounts, SuccessPolicy


def terminal_condition(status: JobStatus) -> ConditionType | None:
    """The verdict in the status. It is final."""
    true = {c.type for c in status.conditions if c.status == "True"}
    return next((c for c in (ConditionType.SUCCEEDED, ConditionType.FAILED) if c in true), None)


def success_of_rank_zero(pods: Sequence[Pod], members: Coordination | None) -> Verdict | None:
    """The job has succeeded if the script of rank 0's worker has exited with 0.

    The source is ``progress`` or that worker's termination record. Other workers may finish long before it: rank 0
    may still evaluate or save. If the worker of rank 0 is unknown, all workers must have succeeded.
    """
    report = members.progress if members else None
    if report and report.finished:
        return Verdict(ConditionType.SUCCEEDED, "Finished", f"training finished at step {report.step}")
    done = {p.name: p.ending.record for p in pods if is_finished(p) and p.ending and p.ending.record}
    placed = members.generation.members if members and members.generation else ()
    first = placed[0].worker if placed else None
    certain = first in done if first else bool(done) and len(done) == len(pods)
    if not certain:
        return None
    step = max(record.step for record in done.values())
    return Verdict(ConditionType.SUCCEEDED, "Finished", f"training finished at step {step}")


def finishing(pods: Sequence[Pod], members: Coordination | None) -> bool:
    """Whether the training loop has ended while some scripts still run: then no worker is created or asked to leave.

    This ends when no worker of that time is left. If rank 0's worker was lost, new workers then complete the job. The
    workers of that time share the generation of one that has finished; without a generation (stock torchrun) they are
    those that were observed before its end. A worker that has registered anew since is none of them: its ranks have
    started again, and wait for others.
    """
    if members and any(m.phase is Phase.FINISHED for m in members.members):
        return True
    ended = {p.name: p.ending.at for p in pods if p.ending and is_finished(p)}
    running = [p for p in pods if p.started and not p.ending]
    if not ended or not members or not members.generation:
        return any(p.seen <= max(ended.values()) for p in running) if ended else False
    placed = {m.worker: m.id for m in members.generation.members}
    anew = {m.worker for m in members.members if placed.get(m.worker, m.id) != m.id}
    return not ended.keys().isdisjoint(placed) and any(p.name in placed.keys() - anew for p in running)


def is_finished(pod: Pod) -> bool:
    """Whether the worker's termination record says that its training loop had ended."""
    return bool(pod.ending and pod.ending.record and pod.ending.record.outcome is Outcome.FINISHED)


def divergence(pods: Iterable[Pod]) -> Verdict | None:
    """The job has failed if its ranks did different things: workers that start again would repeat it, or train on with
    a part of the job, whatever ``backoffLimit`` is."""
    records = (p.ending.record for p in pods if p.ending and p.ending.record)
    first = next((r for r in records if r.outcome is Outcome.FAILED and r.reason == DIVERGED), None)
    return Verdict(ConditionType.FAILED, DIVERGED, first.message) if first else None


def failure(limit: int, restarts: RestartCounts, losses: Iterable[Loss]) -> Verdict | None:
    """The job has failed if its script failed more often than ``backoffLimit``. The message quotes the last failure,
    of several concurrent ones the first."""
    if not counting.is_exhausted(restarts, limit):
        return None
    text = f"the training script failed {restarts.user} times, backoffLimit is {limit}"
    last = counting.quote([x for x in losses if x.cause is Cause.USER], counting.QUOTE_CHARS - len(text))
    text += f"; {last}" if last else ""
    return Verdict(ConditionType.FAILED, "BackoffLimitExceeded", text)


def overdue(spec: JobSpec, start: datetime | None, now: datetime) -> Verdict | None:
    """The job has failed if it has been active for longer than ``activeDeadlineSeconds``."""
    due = deadline(spec, start)
    if due is None or now < due:
        return None
    text = f"the job has been active for longer than activeDeadlineSeconds ({spec.active_deadline_seconds})"
    return Verdict(ConditionType.FAILED, "DeadlineExceeded", text)


def deadline(spec: JobSpec, start: datetime | None) -> datetime | None:
    """When the job exceeds its deadline; None: never (no deadline, suspended, not started)."""
    if spec.active_deadline_seconds is None or start is None or spec.suspend:
        return None
    return start + timedelta(seconds=spec.active_deadline_seconds)


def success(policy: SuccessPolicy, pods: Sequence[Pod], members: Coordination | None) -> Verdict | None:
    """The verdict on a job whose training loop has succeeded on rank 0's worker; None: not yet.

    Under ``AllWorkers`` every other worker of the last generation has to succeed as well. Its work after the loop
    cannot be repeated (no loop is left to join), so a worker that fails or is lost then fails the job.
    """
    first = success_of_rank_zero(pods, members)
    if first is None or policy is SuccessPolicy.RANK_ZERO or members is None or members.generation is None:
        return first  # without etcd, verdicts.success requires that all workers have succeeded
    there = {p.name: p for p in pods}
    for place in members.generation.members:
        pod = there.get(place.worker)
        why = f"the pod of worker {place.worker} is gone" if pod is None else _failure_of(pod)
        if why:
            text = f"training finished, but successPolicy is AllWorkers and {why}"
            return Verdict(ConditionType.FAILED, "WorkerFailedAfterTraining", text)
    still = any(not there[place.worker].ending for place in members.generation.members)
    return None if still else first


def _failure_of(pod: Pod) -> str:
    loss = judge(pod)
    return f"{loss.reason}: {loss.message}" if loss else ""


KEPT_FAILURES = 3
"""Failed pods of a running job that stay for ``kubectl logs``: the newest ones."""
FINISH_GRACE = 60.0
"""Seconds that workers of a finished job have to exit."""
SIDECAR_GRACE = 30.0
"""Seconds that other containers of an ended worker may run; then the pod is deleted to free its resources."""
ORPHAN = "orphan"
"""The finalizer of ``kubectl delete --cascade=orphan``: its user keeps the pods."""


def ended_deletions(
    pods: Iterable[Pod], counted: frozenset[str], now: datetime, refusal: Refusal | None = None
) -> tuple[Deletion, ...]:
    """Ended pods of a running job: drained ones at once, failed ones if they are old or hold resources, or if a quota
    that counts them refuses a pod: one more of the oldest at each ``refusal``.

    A failed pod is deleted only if it is ``counted``: the status contains its loss.
    """
    crowded = refusal is not None and refusal.kind is RefusalKind.QUOTA_EXCEEDED and "count/pods" in refusal.message
    kept = max(KEPT_FAILURES - refusal.attempts, 0) if refusal is not None and crowded else KEPT_FAILURES
    found = sorted((p for p in pods if p.ending and not p.terminating), key=_age, reverse=True)
    done = [p for p in found if is_drained(p) and p.uid not in counted]  # a preempted worker may also have drained
    failed = [p for p in found if p not in done]
    drained = [_deletion(p, "drained") for p in done]
    old = [_deletion(p, "old failure") for p in failed[kept:] if p.uid in counted]
    held = [
        _deletion(p, "ended but still holds resources")
        for p in failed[:kept]
        if p.uid in counted and not p.over and now >= sidecar_deadline(p)
    ]
    return (*drained, *old, *held)


def finished_deletions(
    pods: Iterable[Pod], policy: CleanPodPolicy, verdict: ConditionType, completion: datetime, now: datetime
) -> tuple[Deletion, ...]:
    """Pods of a finished job. Workers that never started are deleted at once under every policy: they have no logs.
    Running workers get time to exit (after a failure: to save a checkpoint)."""
    late = now >= finish_deadline(completion)
    deletions = []
    for pod in pods:
        if pod.terminating:
            continue
        if not pod.ending and not pod.started:
            deletions.append(_deletion(pod, f"job {verdict}, never started"))
        elif policy is CleanPodPolicy.ALL and (pod.ending or late):
            deletions.append(_deletion(pod, f"job {verdict}, cleanPodPolicy All"))
        elif policy is CleanPodPolicy.RUNNING and not pod.over and late:
            deletions.append(_deletion(pod, f"job {verdict}, still running"))
    return tuple(deletions)


def finish_deadline(completion: datetime) -> datetime:
    """When the workers of a finished job that are still running are deleted."""
    return completion + timedelta(seconds=FINISH_GRACE)


def sidecar_deadline(pod: Pod) -> datetime:
    """When an ended worker with other running containers is deleted."""
    return _ended_at(pod) + timedelta(seconds=SIDECAR_GRACE)


def is_drained(pod: Pod) -> bool:
    """Whether the worker left at a step boundary, by its termination record."""
    return bool(pod.ending and pod.ending.record and pod.ending.record.outcome is Outcome.DRAINED)


def _age(pod: Pod) -> tuple[datetime, int]:
    """Newer pods are greater; of those that ended before this operator started, those of a higher ordinal."""
    return _ended_at(pod), pod.ordinal


def _ended_at(pod: Pod) -> datetime:
    assert pod.ending is not None
    return pod.ending.at


def _deletion(pod: Pod, why: str) -> Deletion:
    return Deletion(pod.name, pod.uid, why)


def expiry(ttl_seconds: int | None, completion: datetime | None) -> datetime | None:
    """When the job is to be deleted; None: never, or not finished."""
    if ttl_seconds is None or completion is None:
        return None
    return completion + timedelta(seconds=ttl_seconds)


def deletions_of_deleted_job(pods: Sequence[Pod], finalizers: Sequence[str]) -> tuple[Deletion, ...]:
    """Pods to delete now. Ended ones stay for ``kubectl logs``: they hold nothing, and go with the job."""
    if ORPHAN in finalizers:
        return ()
    return tuple(Deletion(p.name, p.uid, "the job is being deleted") for p in pods if not p.over and not p.terminating)


def deleted_job_claim(pods: Sequence[Pod], finalizers: Sequence[str], now: datetime) -> ConditionUpdate:
    """The condition PodsReady of such a job."""
    live = sum(not p.over for p in pods)
    text = "the job is being deleted"
    if live and ORPHAN in finalizers:
        text += f"; {headcount(live)} kept, by --cascade=orphan"
    elif live:
        text += f"; {headcount(live)} leaving{leaving.overdue(pods, now)}"
    if finalizers:
        text += f"; its object remains until these finalizers are removed: {', '.join(finalizers)}"
    return ConditionUpdate(ConditionType.PODS_READY, "False", "JobDeleted", text)
