"""Events: what is worth telling once. All of them follow from the change of status and target, so none repeats."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.api import rescaled
from elastrain.api.job import Condition, ConditionType, JobStatus
from elastrain.api.names import headcount
from elastrain.api.records import Target
from elastrain_operator.model import Loss, Notice, Severity
from elastrain_operator.policy.losses.failures import last_lines
from elastrain_operator.policy.report import health

_SELF_EXPLAINING = frozenset(
    {"Starting", "Finishing", "AllTrain", "Draining", "Suspended", "BackingOff", "EtcdUnavailable"}
)
"""Reasons of PodsReady that are part of normal life, or told by another condition."""
_TOLD = 900
"""Most characters of a message in an event (the API takes 1024)."""


def notices(
    old: JobStatus, new: JobStatus, before: Target | None, after: Target | None, lost: Iterable[Loss]
) -> tuple[Notice, ...]:
    """What has changed from ``old`` to ``new`` status, and from target ``before`` to ``after`` (None: not written)."""
    return (
        *(_lost(x) for x in lost),
        *_scaling(before, after),
        *_rescaled(old, new),
        *_withdrawn(old, new),
        *_conditions(old, new),
        *health.notices(old.unhealthy_workers, new.unhealthy_workers, ended=new.completion_time is not None),
    )


def _lost(loss: Loss) -> Notice:
    words = f"{loss.message} ({loss.cause}: {loss.reason})"
    tail = last_lines(loss.log_tail, _TOLD - len(words) - 1)
    return Notice("WorkerLost", _cut(f"{words}\n{tail}" if tail else words), Severity.WARNING)


def _scaling(before: Target | None, after: Target | None) -> Iterable[Notice]:
    if after is None:
        return
    if before is None:
        yield Notice("TargetSet", f"{headcount(after.desired)} wanted (min {after.min}, max {after.max})")
    elif before.desired != after.desired:
        yield Notice("Scaling", f"from {before.desired} to {headcount(after.desired)}: {after.reason}")
    fresh = [name for name in after.leaving if before is None or name not in before.leaving]
    if fresh:
        yield Notice("Draining", _cut(f"asked to leave: {', '.join(fresh)}"))


def _rescaled(old: JobStatus, new: JobStatus) -> Iterable[Notice]:
    last = new.last_rescale
    if last and last != old.last_rescale:
        yield Notice(rescaled.REASON, rescaled.tell(last))


def _withdrawn(old: JobStatus, new: JobStatus) -> Iterable[Notice]:
    if new.withdrawal and new.withdrawal != old.withdrawal:
        yield Notice("WorkersWithdrawn", _cut(new.withdrawal.message), Severity.WARNING)


def _conditions(old: JobStatus, new: JobStatus) -> Iterable[Notice]:
    had = {c.type: c for c in old.conditions}
    for now in new.conditions:
        before = had.get(now.type)
        notice = _condition(before, now)
        if notice and (before is None or (before.status, before.reason) != (now.status, now.reason)):
            yield notice


def _condition(before: Condition | None, now: Condition) -> Notice | None:
    words, is_true, is_false = _cut(now.message), now.status == "True", now.status == "False"
    was_true = before is not None and before.status == "True"
    was_false = before is not None and before.status == "False"
    told: Notice | None = None
    match now.type:
        case ConditionType.SUCCEEDED if is_true:
            told = Notice("Succeeded", words)
        case ConditionType.FAILED if is_true:
            told = Notice("Failed", words, Severity.WARNING)
        case ConditionType.SUSPENDED if is_true:
            told = Notice("Suspended", words)
        case ConditionType.SUSPENDED if was_true and now.reason == "Active":
            told = Notice("Resumed", words)
        case ConditionType.CHECKPOINT_HEALTHY if is_false:
            told = Notice("CheckpointFailed", words, Severity.WARNING)
        case ConditionType.CHECKPOINT_HEALTHY if is_true and was_false:
            told = Notice("CheckpointRecovered", words)
        case ConditionType.COORDINATION_AVAILABLE if is_false:
            told = Notice(now.reason, words, Severity.WARNING)
        case ConditionType.UP_TO_DATE if is_false:
            severity = Severity.WARNING if now.reason == "RolloutStopped" else Severity.NORMAL
            told = Notice(now.reason, words, severity)
        case ConditionType.UP_TO_DATE if was_false:
            told = Notice("RolledOut", words)
        case ConditionType.NODES_EXCLUDED if is_true:
            told = Notice("NodesExcluded", words, Severity.WARNING)
        case ConditionType.PODS_READY if is_false and now.reason not in _SELF_EXPLAINING | {"Succeeded", "Failed"}:
            told = Notice(now.reason, words, Severity.WARNING)
    return told


def _cut(words: str) -> str:
    return words if len(words) <= _TOLD else words[: _TOLD - 1] + "…"
