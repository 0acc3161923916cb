"""Whether a job has ended, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from elastrain.api.job import ConditionType, JobSpec, JobStatus, RestartCounts
from elastrain.api.names import DIVERGED
from elastrain.api.records import Outcome, Phase
from elastrain_operator.facts import Cause, Coordination, Loss, Pod, Verdict
from elastrain_operator.policy.losses import failures
from elastrain_operator.policy.losses import restarts as budget


def terminal_condition(status: JobStatus) -> ConditionType | None:
    """The verdict in the status. It is final."""
    true = {c.type for c in status.conditions if c.status == "True"}
    return next((c for c in (ConditionType.SUCCEEDED, ConditionType.FAILED) if c in true), None)


def success(pods: Sequence[Pod], members: Coordination | None) -> Verdict | None:
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
    if not budget.exhausted(restarts, limit):
        return None
    text = f"the training script failed {restarts.user} times, backoffLimit is {limit}"
    last = failures.quote([x for x in losses if x.cause is Cause.USER], failures.QUOTE_CHARS - len(text))
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
