"""Why a job is not larger, for people: the idle capacity, what the next worker needs, and the rule that applies."""

from __future__ import annotations

from dataclasses import dataclass

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


def nodes(grant: Grant) -> str:
    """A job that starts when an autoscaler has added nodes."""
    have = f"{grant.granted} of {headcount(grant.job.min)} (minReplicas)"
    return f"waits for nodes: there is room for {have}; the others are Pending, as a signal to an autoscaler"


def unused(job: Job, size: int) -> str:
    """A job whose granted workers were not bound, or whose pods the API server refuses."""
    return f"{'not grown' if size else 'waits'}: {job.unused}"


def recent(policy: Policy) -> str:
    """The job was resized recently. The message has no remaining seconds, since it would then change constantly."""
    return f"not grown: it was resized within the last {policy.hysteresis:g} s (capacity.hysteresis)"


@dataclass(frozen=True, slots=True)
class Gain:
    """What a job gains by more workers."""

    workers: int
    samples: float | None
    """Samples per second; None: unknown."""
    part: float
    """Of its speed without them."""
    effective: bool = False
    """The job chooses its batch: ``samples`` count as those of its smallest batch."""

    def __str__(self) -> str:
        percent = f"{_figure(100 * self.part)} %"
        unit = "effective samples/s" if self.effective else "samples/s"
        return percent if self.samples is None else f"{_figure(self.samples)} {unit} ({percent})"


def others_gain(here: Gain, there: Gain, other: Job) -> str:
    """The next accelerators are worth more in another job."""
    name = f"{other.namespace}/{other.name}"
    theirs = headcount(there.workers)
    return f"not grown: {headcount(here.workers)} would add {here} here; {theirs} of {name} gained more: {there}"


def untried(most: int, tried: int) -> str:
    """The job may not have more until it has trained with what it has."""
    known = f"its steps with more than {headcount(tried)}" if tried else "its steps"
    return f"not grown: it tries at most {headcount(most)} before {known} are measured"


def no_gain() -> str:
    """The job's own measurements promise nothing from more workers."""
    return "not grown: by its measured steps, no larger size is worth a rescale"


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


def blind(job: Job) -> str:
    """What the allocator does not know about the job's workers; empty: nothing."""
    return f"the allocator does not know the template's {', '.join(job.unknown)}" if job.unknown else ""


def _figure(value: float) -> str:
    """Two digits: the figure is a prediction."""
    return f"{float(f'{value:.2g}'):,.10g}"


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
    unknown = f"; {blind(job)}" if job.unknown and idle.largest >= need else ""
    return f"{have} {what} idle{where}, {needed} needed for the next worker{ranks}{unknown}"


def _no_node(job: Job) -> str:
    place = job.kind.place
    labels = ", ".join(f"{k}={v}" for k, v in place.selector)
    wanted = f" with {labels}" if labels else ""
    return f"no ready, uncordoned node{wanted} matches the template's affinity and tolerations"
