"""The conditions of a job: its current state, with a reason for programs and a message for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from elastrain.api.names import headcount, replicas
from elastrain.api.records import Progress
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import ConditionUpdate, Gang, Outage, Pod, Refusal, Trouble, Truth, Verdict
from elastrain_resource.job import Condition, ConditionType, GenerationStatus, Withdrawal

BEFORE = "when the records were last read: "
"""Begins the message of a condition that is older than an outage of etcd."""


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """The input of the conditions of a job that has not ended."""

    desired: int
    ready: int
    workers: Sequence[Pod]
    """Pods that count as workers."""
    draining: int
    """Workers that were asked to leave and still have their place."""
    generation: GenerationStatus | None
    pending_generation: int | None
    """Number of the newest generation if it is not in force yet."""
    progress: Progress | None
    outage: Outage | None
    """Set if etcd is unknown."""
    lost: str
    """Which records etcd has lost; empty: none."""
    has_checkpoints: bool
    checkpoint_problem: str
    """Why checkpoints do not outlive the workers; empty: they do, or there are none."""
    suspended: bool
    finishing: bool
    """The training loop has ended; scripts are ending."""
    refusal: Refusal | None
    withdrawal: Withdrawal | None
    """Workers that did not start in time; the operator retries them later."""
    troubles: Sequence[Trouble]
    """Why workers do not train, if it has lasted long enough to be reported."""
    waits_until: datetime | None
    """After failures: when the next worker is created."""
    failure: str = ""
    """The last failure of a worker; empty: there is none."""
    share: Share | None = None
    """The allocator's answer; None: the operator does not share the cluster out."""
    overdue: str = ""
    """Those that should be gone, at the end of a message; empty: there are none."""
    group_size: int = 1
    """Workers of a replica. Sizes and the generation's size count replicas."""


def merge(old: Iterable[Condition], claims: Iterable[ConditionUpdate], now: datetime) -> list[Condition]:
    """Conditions with their history: ``lastTransitionTime`` moves only when the status of a condition changes.

    Conditions without a claim stay unchanged.
    """
    merged = {c.type: c for c in old}
    for claim in claims:
        before = merged.get(claim.type)
        same = before is not None and before.status == claim.status
        if before and same and (before.reason, before.message) == (claim.reason, claim.message):
            continue
        merged[claim.type] = Condition(
            type=claim.type.value,
            status=claim.status,
            reason=claim.reason,
            message=claim.message,
            last_transition_time=before.last_transition_time if before and same else now.isoformat(),
        )
    order = [t.value for t in ConditionType]
    return sorted(merged.values(), key=lambda c: (order.index(c.type) if c.type in order else len(order), c.type))


def active(given: ConditionFacts) -> list[ConditionUpdate]:
    """Claims about a job that has not ended."""
    claims = [_pods_ready(given), coordination(given.outage, given.lost), _suspended(given)]
    if not given.outage:
        claims += [_running(given), _rescaling(given)]
    if given.has_checkpoints:
        claims.append(_checkpoint(given.progress, given.checkpoint_problem))
    return claims


def dated(old: Iterable[Condition]) -> list[ConditionUpdate]:
    """Claims about a job whose records cannot be read: what its members did last, said as such."""
    return [
        ConditionUpdate(ConditionType(c.type), cast(Truth, c.status), c.reason, BEFORE + c.message.removeprefix(BEFORE))
        for c in old
        if c.type in (ConditionType.RUNNING, ConditionType.RESCALING)
    ]


def ended(verdict: Verdict) -> list[ConditionUpdate]:
    """Claims about a job that has just ended."""
    message = f"the job has ended: {verdict.reason}"
    over = [
        ConditionUpdate(t, "False", verdict.condition.value, message)
        for t in (ConditionType.PODS_READY, ConditionType.RUNNING, ConditionType.RESCALING, ConditionType.SUSPENDED)
    ]
    over.append(ConditionUpdate(ConditionType.WORKERS_HEALTHY, "Unknown", verdict.condition.value, message))
    return [*over, ConditionUpdate(verdict.condition, "True", verdict.reason, verdict.message)]


def coordination(outage: Outage | None, lost: str = "") -> ConditionUpdate:
    """Whether the operator reaches etcd, and etcd has the job's records."""
    if lost:
        return ConditionUpdate(ConditionType.COORDINATION_AVAILABLE, "False", "DataLost", lost)
    if outage is None:
        return ConditionUpdate(
            ConditionType.COORDINATION_AVAILABLE, "True", "Connected", "the operator is connected to etcd"
        )
    text = f"{outage.message}; meanwhile running workers continue, and no worker is created, drained or scaled"
    return ConditionUpdate(ConditionType.COORDINATION_AVAILABLE, "False", outage.reason, text)


def phase(claims: Iterable[Condition], ready: int) -> str:
    """One word for people."""
    true = {c.type for c in claims if c.status == "True"}
    for kind in (ConditionType.SUCCEEDED, ConditionType.FAILED, ConditionType.SUSPENDED):
        if kind in true:
            return kind.value
    if ConditionType.RESCALING in true and ready:
        return "Rescaling"
    return "Running" if ConditionType.RUNNING in true else "Pending"


def _pods_ready(p: ConditionFacts) -> ConditionUpdate:
    kind = ConditionType.PODS_READY
    if p.suspended:
        return ConditionUpdate(kind, "False", "Suspended", "suspend is true: 0 workers desired")
    if p.outage:
        text = "the training workers are unknown without the job's records in etcd"
        return ConditionUpdate(kind, "Unknown", "EtcdUnavailable", text)
    if not p.desired and p.share:
        return ConditionUpdate(kind, "False", *_unstarted(p, p.share))
    have = f"{p.ready} of {p.desired} {_replicas(p)} train"
    if p.ready == p.desired and not p.draining:
        return ConditionUpdate(kind, "True", "AllTrain", have)
    reason, text = next(_obstacles(p), ("Starting", ""))
    failure = p.failure if reason == "BackingOff" or (reason == "Starting" and not p.ready) else ""
    return ConditionUpdate(kind, "False", reason, "; ".join(filter(None, (have, text, failure))))


def _unstarted(p: ConditionFacts, share: Share) -> tuple[str, str]:
    """Why the allocator desires no worker: reason and message."""
    if p.refusal and p.refusal.kind.lasts:
        return p.refusal.kind.reason, share.message
    return "Starting" if share.size is None else share.obstacle or "WaitingForCapacity", share.message


def _obstacles(p: ConditionFacts) -> Iterator[tuple[str, str]]:
    """Why fewer workers train than desired, the best explanation first: reason and message."""
    if p.finishing:
        yield "Finishing", "the training loop has ended"
    missing = len(p.workers) < p.desired * p.group_size
    if p.refusal and missing:
        yield p.refusal.kind.reason, p.refusal.message
    if p.withdrawal and missing:
        until = datetime.fromisoformat(p.withdrawal.until).isoformat(timespec="seconds")
        yield "NotStarted", f"{p.withdrawal.message}; retried at {until}"
    if p.troubles:
        more = f" (and {len(p.troubles) - 1} more)" if len(p.troubles) > 1 else ""
        yield p.troubles[0].reason, p.troubles[0].message + more
    if missing and p.share and p.share.places is not None:  # no pod waits Pending for it
        yield "WaitingForCapacity", p.share.message
    if p.draining:
        yield "Draining", f"{headcount(p.draining)} leaving{p.overdue}"
    if p.waits_until and missing:
        yield "BackingOff", f"after failures, the next is created at {p.waits_until.isoformat(timespec='seconds')}"


def _suspended(p: ConditionFacts) -> ConditionUpdate:
    kind = ConditionType.SUSPENDED
    if not p.suspended:
        return ConditionUpdate(kind, "False", "Active", "suspend is false")
    if p.workers or p.draining:
        text = f"{headcount(len(p.workers) + p.draining)} leaving{p.overdue}"
        return ConditionUpdate(kind, "False", "Draining", text)
    return ConditionUpdate(kind, "True", "Drained", f"no worker remains; set suspend to false to resume{p.overdue}")


def _running(p: ConditionFacts) -> ConditionUpdate:
    if p.generation and p.generation.size and p.ready:
        text = f"generation {p.generation.number}: {p.ready} of {p.generation.size} {_replicas(p)} alive"
        if p.progress and p.progress.stragglers:
            text += f"; delayed by {', '.join(p.progress.stragglers)}"
        if p.progress and p.progress.audit_error:
            text += f"; {p.progress.audit_error}"
        return ConditionUpdate(ConditionType.RUNNING, "True", "Training", text)
    return ConditionUpdate(ConditionType.RUNNING, "False", "NoGeneration", "no generation trains")


def _rescaling(p: ConditionFacts) -> ConditionUpdate:
    kind = ConditionType.RESCALING
    size = p.generation.size if p.generation else 0
    there = f"{replicas(size, p.group_size)} in the generation"
    if p.finishing:
        return ConditionUpdate(kind, "False", "Finishing", "the training loop has ended")
    if p.pending_generation is not None and size:
        return ConditionUpdate(kind, "True", "Switching", f"members are entering generation {p.pending_generation}")
    if size and size != p.desired:
        return ConditionUpdate(kind, "True", "SizeDiffers", f"{there}, {p.desired} desired")
    if size and p.ready < size:
        text = f"{size - p.ready} of {size} {_replicas(p)} of the generation are gone"
        return ConditionUpdate(kind, "True", "WorkerLost", text)
    return ConditionUpdate(kind, "False", "Settled", there)


def _replicas(p: ConditionFacts) -> str:
    """What is counted as replicas."""
    return "workers" if p.group_size == 1 else "groups"


def _checkpoint(progress: Progress | None, problem: str) -> ConditionUpdate:
    kind, state = ConditionType.CHECKPOINT_HEALTHY, progress.checkpoint if progress else None
    if state is not None and state.error:
        return ConditionUpdate(kind, "False", "SaveFailed", state.error)
    if problem:
        return ConditionUpdate(kind, "False", "NotDurable", problem)
    if state is not None and state.archive_error:
        return ConditionUpdate(
            kind, "False", "CopyFailed", f"{state.archive_error}; step {state.step} is in {state.path}"
        )
    if state is not None and (source := state.resumed) is not None:
        message = f"training resumed at step {source.step} from the {source.tier}: {source.path}"
        return ConditionUpdate(kind, "True", "Resumed", message)
    if state is None or not state.step:
        return ConditionUpdate(kind, "Unknown", "NoneYet", "no durable checkpoint has been written yet")
    return ConditionUpdate(kind, "True", "Saved", f"step {state.step} in {state.path}")


def state_protected(budget: str, marks: str, workers: str, *, was_reported: bool) -> Iterable[ConditionUpdate]:
    """``budget``, ``marks``, ``workers``: why the disruption budget, the annotations for autoscalers, or the set of
    workers could not be written; empty: they are. Most jobs never get the condition."""
    kind, until, text = ConditionType.STATE_PROTECTED, "until that is written,", ""
    if budget:
        text = f"{budget}; {until} evictions (kubectl drain) may remove the last worker with the state"
    elif marks:
        text = f"{marks}; {until} an autoscaler may remove the node of the last worker with the state"
    elif workers:
        text = f"{workers}; {until} a disruption budget of yours with maxUnavailable may block all drains"
    if text:
        yield ConditionUpdate(kind, "False", "WriteRefused", text)
    elif was_reported:
        yield ConditionUpdate(kind, "True", "Protected", "the objects and annotations that protect it are written")


def gang_scheduled(
    gang: Gang | None, minimum: int, was_reported: bool, unwritten: str = ""
) -> Iterable[ConditionUpdate]:
    """``minimum``: the job's ``minReplicas``. ``was_reported``: the job has the condition. ``unwritten``: why the
    object could not be written in its present form; empty: it is."""
    kind = ConditionType.GANG_SCHEDULED
    if unwritten:
        yield ConditionUpdate(kind, "False", "NotGrouped", f"{unwritten}; its present form stays in force")
        return
    if gang is None:
        return
    if gang.problem:
        text = f"{gang.problem}: workers are bound one by one"
        yield ConditionUpdate(kind, "False", "NotGrouped", text)
    elif gang.written:
        name = f"{gang.manifest['kind']} {gang.manifest['metadata']['name']}"
        yield ConditionUpdate(
            kind, "True", "Grouped", f"{name}: {headcount(minimum)} are bound together or none (minReplicas)"
        )
    elif was_reported:
        yield ConditionUpdate(
            kind, "Unknown", "NoGang", "the job wants no workers, or its template names another scheduler"
        )


REFUSED = "StatusRefused"


def refused(cause: str) -> ConditionUpdate:
    """Of a job of which the API server refuses the status."""
    text = f"{cause}; the other fields of the status are older. No worker is created, drained or deleted meanwhile"
    return ConditionUpdate(ConditionType.PODS_READY, "Unknown", REFUSED, text)


UNREADABLE = "StatusUnreadable"


def unreadable_message(job: str, cause: str) -> str:
    """The report of the ``cause`` for users."""
    return (
        f"{cause}. The status is damaged, or of a newer operator. This operator leaves the job alone: workers continue "
        "to train, none is created, drained or deleted. Upgrade the operator, or correct the field with "
        f"`kubectl edit etj {job} --subresource=status`"
    )


def unreadable_patch(status: Any, text: str, now: datetime) -> dict[str, Any] | None:
    """A merge patch that adds the report to the conditions of a raw ``status``; None: it is there already, or the
    conditions cannot be read either."""
    found = (status.get("conditions") or []) if isinstance(status, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(c, Mapping) for c in found):
        return None
    kind = ConditionType.PODS_READY.value
    before: Mapping[str, Any] = next((c for c in found if c.get("type") == kind), {})
    if (before.get("status"), before.get("reason"), before.get("message")) == ("Unknown", UNREADABLE, text):
        return None
    same = before.get("status") == "Unknown" and before.get("lastTransitionTime")
    report = {
        "type": kind,
        "status": "Unknown",
        "reason": UNREADABLE,
        "message": text,
        "lastTransitionTime": same or now.isoformat(),
    }
    return {"conditions": [report, *(c for c in found if c.get("type") != kind)]}
