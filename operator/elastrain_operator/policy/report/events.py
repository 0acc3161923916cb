"""Events, each recorded once: they follow from a change of the status or the target."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.api.names import headcount
from elastrain.api.records import Target
from elastrain_operator.facts import JobEvent, Loss, Severity
from elastrain_operator.policy.losses.counting import last_lines
from elastrain_operator.policy.report import health
from elastrain_resource import rescaled
from elastrain_resource.job import Condition, ConditionType, JobStatus

_SELF_EXPLAINING = frozenset(
    {"Starting", "Finishing", "AllTrain", "Draining", "Suspended", "BackingOff", "EtcdUnavailable"}
)
"""Reasons of PodsReady that are part of normal operation, or shown by another condition."""
LONGEST = 900
"""Most characters of a message in an event (the API accepts 1024)."""


def events_of(
    old: JobStatus, new: JobStatus, before: Target | None, after: Target | None, lost: Iterable[Loss]
) -> tuple[JobEvent, ...]:
    """The changes from ``old`` to ``new`` status, and from target ``before`` to ``after`` (None: not written)."""
    return (
        *(_lost(x) for x in lost),
        *_scaling(before, after),
        *_rescaled(old, new),
        *_conditions(old, new),
        *health.events_of(old.unhealthy_workers, new.unhealthy_workers, ended=new.completion_time is not None),
    )


def _lost(loss: Loss) -> JobEvent:
    text = f"{loss.message} ({loss.cause}: {loss.reason})"
    tail = last_lines(loss.log_tail, LONGEST - len(text) - 1)
    return JobEvent("WorkerLost", _cut(f"{text}\n{tail}" if tail else text), Severity.WARNING)


def _scaling(before: Target | None, after: Target | None) -> Iterable[JobEvent]:
    if after is None:
        return
    if before is None:
        yield JobEvent("TargetSet", f"{headcount(after.desired)} desired (min {after.min}, max {after.max})")
    elif before.desired != after.desired:
        yield JobEvent("Scaling", f"from {before.desired} to {headcount(after.desired)}: {after.reason}")
    fresh = [name for name in after.leaving if before is None or name not in before.leaving]
    if fresh:
        yield JobEvent("Draining", _cut(f"asked to leave: {', '.join(fresh)}"))


def _rescaled(old: JobStatus, new: JobStatus) -> Iterable[JobEvent]:
    last = new.last_rescale
    if last and last != old.last_rescale:
        yield JobEvent(rescaled.REASON, rescaled.tell(last))


def _conditions(old: JobStatus, new: JobStatus) -> Iterable[JobEvent]:
    had = {c.type: c for c in old.conditions}
    for now in new.conditions:
        before = had.get(now.type)
        notice = _condition(before, now)
        if notice and (before is None or (before.status, before.reason) != (now.status, now.reason)):
            yield notice


def _condition(before: Condition | None, now: Condition) -> JobEvent | None:
    text, is_true, is_false = _cut(now.message), now.status == "True", now.status == "False"
    was_true = before is not None and before.status == "True"
    was_false = before is not None and before.status == "False"
    found: JobEvent | None = None
    match now.type:
        case ConditionType.SUCCEEDED if is_true:
            found = JobEvent("Succeeded", text)
        case ConditionType.FAILED if is_true:
            found = JobEvent("Failed", text, Severity.WARNING)
        case ConditionType.SUSPENDED if is_true:
            found = JobEvent("Suspended", text)
        case ConditionType.SUSPENDED if was_true and now.reason == "Active":
            found = JobEvent("Resumed", text)
        case ConditionType.CHECKPOINT_HEALTHY | ConditionType.UP_TO_DATE if is_true and (
            was_false or now.reason == "Resumed"
        ):
            found = JobEvent(now.reason, text)
        case kind if is_false and kind in _FAULTS:
            found = JobEvent(now.reason, text, Severity.WARNING)
        case ConditionType.COORDINATION_AVAILABLE if is_true and before is not None and before.reason == "DataLost":
            found = JobEvent(now.reason, "etcd has the records of this job again")
        case ConditionType.UP_TO_DATE if is_false:
            severity = Severity.WARNING if now.reason == "RolloutStopped" else Severity.NORMAL
            found = JobEvent(now.reason, text, severity)
        case ConditionType.NODES_EXCLUDED if is_true:
            found = JobEvent("NodesExcluded", text, Severity.WARNING)
        case ConditionType.PODS_READY if is_false and now.reason not in _SELF_EXPLAINING | {"Succeeded", "Failed"}:
            found = JobEvent(now.reason, text, Severity.WARNING)
    return found


_FAULTS = frozenset({
    ConditionType.CHECKPOINT_HEALTHY, ConditionType.COORDINATION_AVAILABLE, ConditionType.GANG_SCHEDULED,
    ConditionType.STATE_PROTECTED,
})  # fmt: skip
"""Conditions of which False is a fault."""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
