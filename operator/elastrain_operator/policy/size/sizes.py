"""How many: desired replicas, warm spares, and the target that tells the members. Pure.

A spare is an ordinary pod. It starts like any worker, imports, builds the model and reports that it is ready; the
members admit no more than ``target.desired``, so it waits. When a worker is lost or the desired number grows, the
members admit it without the operator, which only creates the next spare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from elastrain.api.names import LABEL_QUEUE
from elastrain.api.records import Phase, Target
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import DEFAULT_GRACE, DRAIN_MARGIN, ConditionUpdate, Coordination, Observed, Pod
from elastrain_operator.raw import Raw, mapping, text
from elastrain_resource.job import Condition, ConditionType, GenerationStatus, JobSpec, JobStatus, SparesStatus

ANSWER = timedelta(seconds=3)
"""How long the report of a changed spec waits for the allocator's answer, so that both are one write of the status."""


def desired_replicas(spec: JobSpec, status: JobStatus, share: Share | None) -> int:
    """Desired workers. ``share``: the allocator's answer; None: this operator does not share the cluster out, and an
    absent ``replicas`` means ``maxReplicas``.

    A share may be older than the spec, so the spec's bounds apply to it. If the allocator does not know the cluster,
    the job keeps its size; a new job waits, or starts with its minimum if waiting would not help.
    """
    if spec.suspend:
        return 0
    if share is None:
        return spec.desired_replicas
    if share.size is not None:
        return min(share.size, spec.desired_replicas)
    kept = min(status.desired_replicas or 0, spec.desired_replicas)
    return max(kept, spec.min_replicas) if share.blind else kept


def free_places(workers: Iterable[Pod], share: Share | None) -> int | None:
    """Places for further workers; below 0: so many have none. None: no bound (``Share.places``)."""
    if share is None or share.places is None:
        return None
    known = share.kept | share.release
    return share.places - sum(p.name not in known for p in workers)


def unanswered_since(before: datetime | None, observed: Observed, now: datetime) -> datetime | None:
    """Since when the allocator owes an answer for the job's present spec; None: it owes none. ``before``: the last
    result."""
    share = observed.share
    owed = share is not None and share.generation not in {None, observed.job.generation}
    return (before or now) if owed else None


def grown(
    old: Iterable[Condition], suspended: bool, share: Share | None, desired: int, cap: int, *, answered: bool = True
) -> ConditionUpdate | None:
    """The condition that explains why the job is not larger; None: it stays as it is, or no explanation has ever
    applied. ``answered``: the share is for the present spec."""
    kind = ConditionType.GROWN
    if suspended or share is None:
        if not any(c.type == kind for c in old):
            return None
        why = "suspend is true" if suspended else "this operator does not share the cluster out"
        return ConditionUpdate(kind, "Unknown", "Suspended" if suspended else "NotShared", why)
    if not (share.is_answer and answered) and any(c.type == kind for c in old):
        return None
    if share.size is None:
        return ConditionUpdate(kind, "Unknown", share.reason, share.message)
    return ConditionUpdate(kind, "True" if desired >= cap else "False", share.reason, share.message)


def queue_of(body: Raw) -> str:
    """The queue that a job names in its label; empty: none."""
    return text(mapping(mapping(body.get("metadata")).get("labels")).get(LABEL_QUEUE))


def with_ignored_queue(claim: ConditionUpdate | None, queue: str, *, is_shared: bool) -> ConditionUpdate | None:
    """``claim`` of a job that names ``queue`` although this operator runs without Kueue; empty: it names none."""
    if not queue or (claim is None and is_shared):
        return claim
    text = f"the label {LABEL_QUEUE}: {queue} is ignored, as this operator runs without Kueue (kueue.enabled)"
    if claim is None or claim.reason == "NotShared":
        return ConditionUpdate(ConditionType.GROWN, "Unknown", "NotShared", text)
    return replace(claim, message=f"{claim.message}; {text}")


def desired_spares(
    spec: JobSpec, desired: int, workers: int, generation: GenerationStatus | None, share: Share | None
) -> int:
    """Desired spares beside ``desired`` workers. ``workers``: pods that count as workers; ``generation``: in force.

    0 before the job trains: the first workers must neither wait for spares nor share accelerators with them. If the
    operator shares the cluster out, ``share`` limits the spares; if it does not know the cluster, existing ones stay.
    """
    if not spec.warm_spares or not desired or generation is None or not generation.size:
        return 0
    if share is None:
        return spec.warm_spares
    if share.size is None:
        return min(spec.warm_spares, max(workers - desired, 0))
    return min(spec.warm_spares, share.spares)


def standing_by(seen: Coordination) -> frozenset[str]:
    """Warm spares (pod names): ready workers outside the newest generation, if that has the desired size."""
    newest, target = seen.generation, seen.target
    if newest is None or target is None or not target.desired or len(newest.members) < target.desired:
        return frozenset()
    placed = {m.worker for m in newest.members}
    return frozenset(m.worker for m in seen.members if m.phase is Phase.READY and m.worker not in placed)


def spares_status(
    spec: JobSpec, previous: SparesStatus | None, desired: int, spares: frozenset[str] | None
) -> SparesStatus | None:
    """The status of ``desired`` spares; None if the spec asks for none. ``spares``: None: unknown."""
    if not spec.warm_spares:
        return None
    ready = (previous.ready if previous else 0) if spares is None else len(spares) // spec.group_size
    return SparesStatus(ready=min(ready, desired), desired=desired)


def target(
    spec: JobSpec,
    desired: int,
    previous: Target | None,
    leaving: Iterable[str],
    pods: Iterable[Pod] = (),
    *,
    stop: bool,
    above: int = 0,
) -> Target:
    """The target of ``desired`` replicas, in workers; ``stop``: the job has failed, all workers save and leave.

    The reason changes only with the size: removing a gone worker from ``leaving`` keeps it.
    """
    size = spec.group_size
    return Target(
        min=spec.min_replicas * size,
        max=spec.max_replicas * size,
        desired=desired * size,
        leaving=tuple(sorted(leaving)),
        reason=_reason(spec, previous, desired * size, stop),
        above=above,
        drain=_drain(spec, pods),
    )


def _drain(spec: JobSpec, pods: Iterable[Pod]) -> float | None:
    """If the grace period of a pod is shorter than its template's, as a policy may make it."""
    given = spec.template["spec"].get("terminationGracePeriodSeconds")
    least = min((p.grace for p in pods if not p.over), default=math.inf)
    return max(least - DRAIN_MARGIN, 1.0) if least < (given if isinstance(given, int) else DEFAULT_GRACE) else None


def _reason(spec: JobSpec, previous: Target | None, desired: int, stop: bool) -> str:
    if stop:
        return "Stop"
    if spec.suspend:
        return "Suspend"
    if previous is None:
        return "Start"
    if desired == previous.desired:
        return previous.reason
    if previous.desired == 0:
        return "Start"
    return "Grow" if desired > previous.desired else "Drain"
