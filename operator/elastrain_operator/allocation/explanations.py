"""Why a job is not larger, for people: the idle capacity, what the next worker needs, and the rule that applies."""

from __future__ import annotations

from elastrain.api.names import headcount
from elastrain_operator.allocation.grant import Grant, Stop
from elastrain_operator.allocation.model import PODS, Job, Policy
from elastrain_operator.allocation.room import Idle
from elastrain_operator.allocation.worth import Worth


def at_max(job: Job, size: int) -> str:
    """The job has its largest size."""
    return f"{headcount(size)}: all of {'maxReplicas' if job.elastic else 'replicas'}"


def minimum(grant: Grant, idle: Idle | None, quota: str) -> str:
    """A job that is not admitted."""
    job = grant.job
    needs = (
        f"waits: {headcount(job.min)} must start together (minReplicas)"
        if job.min > 1
        else "waits for its first worker"
    )
    if grant.coming:
        return f"{needs}; other workers are leaving for {'them' if job.min > 1 else 'it'}"
    if grant.stop is Stop.QUOTA:
        return f"{needs}; {quota}"
    if idle is not None and not idle.nodes:
        return f"{needs}; {_no_node(job)}"
    return f"{needs}, there is room for {grant.reached}; {_idle(job, idle)}" if idle else needs


def not_grown(grant: Grant, idle: Idle | None, quota: str) -> str:
    """A job that is admitted and could have more."""
    text = {
        Stop.QUOTA: quota,
        Stop.NO_NODE: _no_node(grant.job),
        Stop.OTHERS_LEAVE: f"{headcount(grant.waits)} can join when other workers have left",
    }
    why = text.get(grant.stop) if grant.stop else None
    return f"not grown: {why or (_idle(grant.job, idle) if idle else 'no room')}"


def recent(policy: Policy) -> str:
    """The job was resized recently. The message has no remaining seconds, since it would then change constantly."""
    return f"not grown: it was resized within the last {policy.hysteresis:g} s (capacity.hysteresis)"


def vain(job: Job, to: int, worth: Worth) -> str:
    """A larger size would not be worth its pause."""
    gain = f"growing by {headcount(to - job.size)} would gain {worth.gain:.0f} worker-seconds in {worth.seconds:.0f} s"
    return f"not grown: {gain}, the pause would cost {worth.cost:.0f}"


def quota(namespace: str, resource: str, used: int, most: int, need: int) -> str:
    """The namespace's quota has no room for another worker."""
    have = f"{amount(resource, used)} of {amount(resource, most)} {resource}"
    return f"{have} of namespace {namespace}'s quota used, {amount(resource, need)} needed for the next worker"


def amount(resource: str, value: int) -> str:
    """An amount for people: cores, GiB, pieces."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    if resource == "memory" or resource.startswith("hugepages-") or resource == "ephemeral-storage":
        return f"{value / 2**30:.3g} GiB"
    return str(value)


def _idle(job: Job, idle: Idle) -> str:
    """``2 nvidia.com/gpu idle, 4 needed for the next worker (nprocPerNode 4)``."""
    need = dict(job.kind.demand).get(idle.resource, 0)
    what = "places for pods" if idle.resource == PODS else idle.resource
    where = ""
    if idle.short != idle.resource and idle.largest >= need:
        where = f", but {idle.short} is short"
    elif idle.total >= need > idle.largest:
        where = f", at most {amount(idle.resource, idle.largest)} on one node"
    ranks = f" (nprocPerNode {job.nproc})" if job.nproc > 1 else ""
    have, needed = amount(idle.resource, idle.total), amount(idle.resource, need)
    return f"{have} {what} idle{where}, {needed} needed for the next worker{ranks}"


def _no_node(job: Job) -> str:
    place = job.kind.place
    labels = ", ".join(f"{k}={v}" for k, v in place.selector)
    wanted = f" with {labels}" if labels else ""
    return f"no ready, uncordoned node{wanted} matches the template's affinity and tolerations"
