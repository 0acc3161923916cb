"""Why a job is not larger, for people: the idle capacity, what the next worker needs, and the rule that applies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastrain.api import names
from elastrain.api.names import headcount
from elastrain_operator.allocation.grant import Grant, Stop
from elastrain_operator.allocation.room import Idle
from elastrain_operator.allocation.snapshot import PODS, Job
from elastrain_operator.allocation.worth import Worth

MOST_NODES = 3
"""Nodes that a message names."""


def replicas(job: Job, workers: int) -> str:
    """So many workers as the job's users count them: ``4 workers``, or ``2 groups`` of 2 workers each."""
    return names.replicas(workers // job.group_size, job.group_size)


def at_max(job: Job, size: int) -> str:
    """The job has its largest size."""
    return f"{replicas(job, size)}: all of {'maxReplicas' if job.elastic else 'replicas'}"


def minimum(grant: Grant, idle: Idle | None, quota: str) -> str:
    """A job that is not admitted."""
    job = grant.job
    several = job.min > job.group_size
    needs = (
        f"waits: {replicas(job, job.min)} must start together (minReplicas)"
        if several
        else f"waits for its first {_replica(job)}"
    )
    if grant.coming:
        return f"{needs}; other workers are leaving for {'them' if several else 'it'}"
    if grant.stop is Stop.QUOTA:
        return f"{needs}; {quota}"
    if idle is not None and not idle.nodes:
        return f"{needs}; {_no_node(job)}"
    room = grant.reached // job.group_size
    return f"{needs}, there is room for {room}; {_idle(job, idle, job.group_size)}" if idle else needs


def not_grown(grant: Grant, idle: Idle | None, quota: str) -> str:
    """A job that is admitted and could have more."""
    text = {
        Stop.QUOTA: quota,
        Stop.NO_NODE: _no_node(grant.job),
        Stop.OTHERS_LEAVE: f"{headcount(grant.waits)} can join when other workers have left",
    }
    why = text.get(grant.stop) if grant.stop else None
    wanted = grant.lacks or grant.job.group_size
    return f"not grown: {why or (_idle(grant.job, idle, wanted) if idle else 'no room')}"


def nodes(grant: Grant) -> str:
    """A job that starts when an autoscaler has added nodes."""
    groups = "" if grant.job.group_size == 1 else f": {replicas(grant.job, grant.job.min)}"
    have = f"{grant.granted} of {headcount(grant.job.min)} (minReplicas{groups})"
    return f"waits for nodes: there is room for {have}; the others are Pending, as a signal to an autoscaler"


def unused(job: Job, size: int) -> str:
    """A job whose granted workers were not bound, or whose pods the API server refuses."""
    return f"{'not grown' if size else 'waits'}: {job.unused}{f'; {blind(job)}' if job.unknown else ''}"


def recent(seconds: float) -> str:
    """The job was resized recently. The message has no remaining seconds, since it would then change constantly."""
    return f"not grown: it was resized within the last {seconds:g} s (capacity.hysteresis)"


@dataclass(frozen=True, slots=True)
class Gain:
    """What a job gains by more workers."""

    job: Job
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


def others_gain(here: Gain, there: Gain) -> str:
    """The next accelerators are worth more in another job."""
    more, other = replicas(here.job, here.workers), replicas(there.job, there.workers)
    name = f"{there.job.namespace}/{there.job.name}"
    return f"not grown: {more} would add {here} here; {other} of {name} gained more: {there}"


def trial(job: Job, size: int, there: Gain) -> str:
    """The job tries fewer workers, so that another one has more."""
    name, more = f"{there.job.namespace}/{there.job.name}", replicas(there.job, there.workers)
    return f"not grown: it tries {replicas(job, size)}, to learn whether it needs more; {more} of {name} gain {there}"


def trial_lasts(job: Job) -> str:
    """The job has fewer workers than it has measured."""
    return f"not grown: it keeps {replicas(job, job.size)} until its steps with them are measured"


def untried(job: Job, most: int, tried: int) -> str:
    """The job may not have more until it has trained with what it has."""
    known = f"its steps with more than {replicas(job, tried)}" if tried else "its steps"
    return f"not grown: it tries at most {replicas(job, most)} before {known} are measured"


def no_gain() -> str:
    """The job's own measurements promise nothing from more workers."""
    return "not grown: by its measured steps, no larger size is worth a rescale"


def vain(job: Job, to: int, worth: Worth) -> str:
    """A larger size would not be worth its pause."""
    gain = (
        f"growing by {replicas(job, to - job.size)} would gain {worth.gain:.0f} worker-seconds in {worth.seconds:.0f} s"
    )
    return f"not grown: {gain}, the pause would cost {worth.cost:.0f}"


def quota(namespace: str, resource: str, used: int, most: int, need: int, *, workers: int = 1) -> str:
    """The namespace's quota has no room for another worker, or group of ``workers``, which needs ``need``."""
    have = f"{amount(resource, used)} of {amount(resource, most)} {resource}"
    what = "worker" if workers == 1 else f"{workers} workers"
    return f"{have} of namespace {namespace}'s quota used, {amount(resource, need)} needed for the next {what}"


def resource_quota(key: str, resource: str, left: int, hard: int, need: int) -> str:
    """A ResourceQuota (``namespace/name``) has no room for another worker, or for several together."""
    unit = resource.removeprefix("requests.").removeprefix("limits.")
    have = f"{amount(unit, hard - left)} of {amount(unit, hard)} {resource}"
    return f"{have} of ResourceQuota {key} used, {amount(unit, need)} more needed"


def amount(resource: str, value: int) -> str:
    """An amount for people: cores, GiB, pieces."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    if resource == "memory" or resource.startswith("hugepages-") or resource.endswith("storage"):
        return f"{value / 2**30:.3g} GiB"
    return str(value)


def blind(job: Job) -> str:
    """What the allocator does not know about the job's workers; empty: nothing."""
    return f"the allocator does not know the template's {', '.join(job.unknown)}" if job.unknown else ""


def altered(job: Job) -> str:
    """What admission has changed of what a worker of the template needs; empty: nothing, or that is unknown."""
    return f"; admission changes its pods: {', '.join(job.altered)}" if job.altered else ""


def no_signal(job: Job) -> str:
    """Why no worker of it waits Pending for an autoscaler; empty: one may."""
    why = "no worker waits Pending, since the scheduler would evict other jobs' workers for it (its priority class's"
    return f"; {why} preemptionPolicy is not Never)" if job.evicts else ""


def leaves(nodes: Sequence[tuple[str, str]]) -> str:
    """Nodes (name, why) that the job's workers should leave; empty: none."""
    return f"; workers leave {_nodes(nodes)} as other nodes have room" if nodes else ""


def faulty_nodes(nodes: Sequence[tuple[str, str]]) -> str:
    """Nodes (name, why) that take no new worker because of a fault; empty: none."""
    return f"; no worker goes to {_nodes(nodes)}" if nodes else ""


def _nodes(nodes: Sequence[tuple[str, str]]) -> str:
    more = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
    return ", ".join(f"{name} ({why})" for name, why in nodes[:MOST_NODES]) + more


def _figure(value: float) -> str:
    """Two digits: the figure is a prediction."""
    return f"{float(f'{value:.2g}'):,.10g}"


def _idle(job: Job, idle: Idle, workers: int) -> str:
    """``2 nvidia.com/gpu idle, 4 needed for the next worker (nprocPerNode 4)``. ``workers``: that it would get next."""
    each = dict(job.kind.demand).get(idle.resource, 0)
    need = each * workers
    what = "places for pods" if idle.resource == PODS else idle.resource
    where = ""
    if idle.short != idle.resource and idle.largest >= each:
        where = f", but {idle.short} is short"
    elif idle.total >= need and idle.largest < each:
        where = f", at most {amount(idle.resource, idle.largest)} on one node"
    ranks = f" (nprocPerNode {job.nproc})" if job.nproc > 1 else ""
    have, needed = amount(idle.resource, idle.total), amount(idle.resource, need)
    unknown = f"; {blind(job)}" if job.unknown and idle.largest >= each else ""
    group = f" ({job.group_size} workers)" if job.group_size > 1 else ""
    following = _replica(job) if workers == job.group_size else f"{replicas(job, workers)} together"
    return f"{have} {what} idle{where}, {needed} needed for the next {following}{group}{ranks}{unknown}"


def _replica(job: Job) -> str:
    return "worker" if job.group_size == 1 else "group"


def _no_node(job: Job) -> str:
    place = job.kind.place
    labels = ", ".join(f"{k}={v}" for k, v in place.selector)
    wanted = f" with {labels}" if labels else ""
    return f"no ready, uncordoned node{wanted} matches the template's affinity and tolerations"
