"""Why a queued job is not larger, for people: the queue, Kueue's own words, and what would make it larger. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elastrain.api.names import replicas
from elastrain_operator.kueue.workload import ALWAYS, CLASS_LABEL, EXTRAS_NOTE, QUEUE_LABEL, Request, View, Workload

UNSEEN = "Kueue has not looked at it yet; if this lasts, check that Kueue's controller runs"
"""Of a Workload without a word of Kueue."""


def unknown(request: Request, problem: str) -> str:
    """Kueue cannot be read."""
    return (
        f"queue {request.queue or 'of the job'}: {problem}; meanwhile running workers continue, and no worker is "
        "created or drained"
    )


def missing(request: Request) -> str:
    """The base Workload was deleted while workers run."""
    return (
        f"the job's Workload {request.base} is gone: its workers hold no quota, and leave within 30 s unless Kueue was "
        "uninstalled; the job then queues again"
    )


class Why(NamedTuple):
    """Reason and message of the condition ``Grown``."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Admission:
    """What a job has got of what it asks."""

    request: Request
    view: View
    base: Workload | None
    on: Workload | None
    """The base, if its pods may exist."""
    size: int
    """Admitted replicas."""
    waiting: Sequence[Workload]
    """Extras in the queue."""
    held: str = ""
    """Why a running job does not move to another queue or template; empty: it need not."""


def closed(request: Request, view: View) -> str:
    """Why the job's queue takes no Workload of it now; empty: it does."""
    if view.queue is None:
        return f"there is no LocalQueue {request.queue} here"
    if view.queue.closed:
        return f"{_queue(request, view)} takes nothing: {view.queue.closed}"
    return "" if view.priority is not None else f"there is no WorkloadPriorityClass {request.priority_class}"


def why(has: Admission) -> Why:
    """Reason and message of the condition ``Grown``."""
    if has.held and has.base is not None:
        text = (
            f"the job's queue or template has changed, but {has.held}: its workers keep their places in queue "
            f"{has.base.queue}, and move when that has changed; or correct the label {QUEUE_LABEL}"
        )
        return Why(reason="Moves", message=text)
    return _obstacle(has) or (_not_on(has, has.base) if has.base and has.on is None else _on(has))


def _obstacle(has: Admission) -> Why | None:
    """What keeps the job from queueing at all."""
    request, view, base = has.request, has.view, has.base
    if not request.queue:
        return Why(
            reason="Moves",
            message=f"the label {QUEUE_LABEL} was removed: workers leave, then the job runs without Kueue",
        )
    if view.queue is None and (base is None or not base.reserved):
        return Why(
            reason="QueueObjectMissing",
            message=f"there is no LocalQueue {request.queue} here; create it, or change the label {QUEUE_LABEL}",
        )
    if view.priority is None:
        return Why(
            reason="QueueObjectMissing",
            message=f"there is no WorkloadPriorityClass {request.priority_class} ({CLASS_LABEL})",
        )
    if base is None or base.going:
        text = f"a Workload for {replicas(request.minimum, request.pods)} (minReplicas) is being created"
        return Why(reason="Queued", message=f"{_queue(request, view)}: {text}")
    return None


def _on(has: Admission) -> Why:
    """The minimum is admitted."""
    request, queue = has.request, has.view.queue
    name = _queue(request, has.view)
    unread = [f for f in has.on.flavors if f not in has.view.flavors] if has.on else []
    if unread:
        text = (
            f"{name} admits the job on ResourceFlavor {', '.join(unread)}, which does not exist: no worker is created"
        )
        return Why(reason="QueueObjectMissing", message=text)
    if has.size >= request.wanted:
        return Why(
            reason="AtMax", message=f"{name} admits {replicas(has.size, request.pods)}, all that the job asks for"
        )
    have = f"{name} admits {has.size} of {replicas(request.wanted, request.pods)}"
    if has.waiting:
        said = next((w.message for w in has.waiting if w.message), "")
        return Why(reason="ExtrasWait", message=f"{have}; the next one waits: {said or UNSEEN}")
    if queue is not None and queue.strict and not request.always_ahead:
        return Why(
            reason="QueueIsStrict",
            message=(
                f"{have}: in a StrictFIFO ClusterQueue a waiting extra worker would hold up all other jobs; "
                f"the annotation {EXTRAS_NOTE}: {ALWAYS} asks for it"
            ),
        )
    return Why(reason="ExtrasWait", message=f"{have}; after an eviction the next one is queued later")


def _not_on(has: Admission, base: Workload) -> Why:
    """The base may have no pods."""
    request, name = has.request, _queue(has.request, has.view)
    said = f": {base.message}" if base.message else ""
    if base.evicted and base.reserved:
        return Why(
            reason="Evicted",
            message=f"{name} takes the job's quota back ({base.evicted}){said}; workers save and leave",
        )
    if not base.active and not request.suspend:
        return Why(
            reason="Deactivated",
            message=(
                f"{name}: Workload {base.name} was deactivated{said}; set its spec.active to true, or suspend and "
                "resume the job"
            ),
        )
    if base.runs:
        text = "the job's queue, template or minReplicas has changed; workers leave, and it queues again"
        return Why(reason="Moves", message=f"{name}: {text}")
    if base.reserved:
        return Why(
            reason="AdmissionCheck", message=f"{name} has reserved quota, and waits for its admission checks{said}"
        )
    waits = f"waits in {name} for {replicas(request.minimum, request.pods)} (minReplicas)"
    return Why(reason="Queued", message=f"{waits}{said or f': {UNSEEN}'}")


def _queue(request: Request, view: View) -> str:
    of = f" (ClusterQueue {view.queue.cluster_queue})" if view.queue and view.queue.cluster_queue else ""
    return f"queue {request.queue}{of}"
