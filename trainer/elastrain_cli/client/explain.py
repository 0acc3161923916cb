"""Explains the size of a job and how to change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastrain_cli.client import Worker, queued
from elastrain_resource.job import Condition, ConditionType, ElasticTrainingJob, JobStatus
from elastrain_resource.sizing.describe import more_share, shares_line, why_this_batch


@dataclass(frozen=True, slots=True)
class Reason:
    """A fact and its remedy."""

    text: str
    change: str = ""
    """A command or a step; empty if no action is needed."""


def explain(job: ElasticTrainingJob, workers: Sequence[Worker]) -> list[Reason]:
    """The reasons that limit the job's size or stop its training, most important first. The last reason names the
    bounds of the size."""
    status = job.status or JobStatus()
    conditions = {c.type: c for c in status.conditions}

    def holds(kind: ConditionType) -> str | None:
        found = conditions.get(kind)
        return found.message if found and found.status == "True" else None

    if (message := holds(ConditionType.FAILED)) is not None:
        here = "uid" not in job.metadata  # no API server has given the job one: it runs on this machine
        remedy = "" if here else f"elastrain logs {job.name}; then delete it and submit it again"
        return [Reason(f"the job failed: {message}", remedy)]
    if (message := holds(ConditionType.SUCCEEDED)) is not None:
        return [Reason(f"the job finished: {message}")]
    if status.observed_generation is None:
        return [Reason("no operator has observed the job", "elastrain doctor")]
    if job.spec.suspend:
        return [Reason("the job is suspended: 0 workers desired", f"elastrain resume {job.name}")]
    # The last reason contains this text too; a condition may contain no more.
    bare = f"{status.ready_replicas} of {_desired(job, status)} {job.spec.replica}s train"
    unmet = {r.text: r for r in reversed(_unmet(job, conditions)) if r.text != bare}  # two conditions may say the same
    ready = conditions.get(ConditionType.PODS_READY)
    starting = [] if ready is not None and ready.message in unmet else _starting(workers)
    return [
        *reversed(unmet.values()), *_stopped(workers), *starting, *_spares(job, status), *_batch(job, status),
        *_shares(status),
        _bounds(job, status),
    ]  # fmt: skip


def _unmet(job: ElasticTrainingJob, conditions: Mapping[str, Condition]) -> list[Reason]:
    grown, ready = conditions.get(ConditionType.GROWN), conditions.get(ConditionType.PODS_READY)
    first = _REMEDIES.get(ready.reason, "").format(name=job.name, namespace=job.namespace) if ready is not None else ""
    remedies = {
        ConditionType.COORDINATION_AVAILABLE: "elastrain doctor; healthy jobs continue meanwhile",
        ConditionType.PODS_READY: first,
        ConditionType.GROWN: queued.change(job, grown) if grown is not None else "",
        ConditionType.WORKERS_HEALTHY: "",
        ConditionType.GANG_SCHEDULED: "install the scheduler's API, or set gang.scheduler of the chart",
        ConditionType.UP_TO_DATE: "",
        ConditionType.CHECKPOINT_HEALTHY: "check the volume of spec.checkpoint.path",
    }
    reasons = []
    for kind, remedy in remedies.items():
        found = conditions.get(kind)
        if found is not None and found.status == "False":
            reasons.append(Reason(found.message, remedy))
    excluded = conditions.get(ConditionType.NODES_EXCLUDED)
    if excluded is not None and excluded.status == "True":
        reasons.append(Reason(excluded.message))
    return reasons


_REMEDIES = {
    "Unschedulable": "free or add nodes with these resources, or lower replicas",
    "ImagePullBackOff": "check the image's name, and imagePullSecrets",
    "ErrImagePull": "check the image's name, and imagePullSecrets",
    "CreateContainerConfigError": "check the secrets and config maps named in the template",
    "OOMKilled": "raise the memory limit in the template",
    "TemplateInvalid": "correct the template and apply it again; elastrain validate checks it before",
    "QuotaExceeded": "kubectl describe quota -n {namespace}; raise it, or lower minReplicas or the requests",
    "BackingOff": "elastrain logs {name}",
}
"""By the reason of a pod, or of PodsReady."""


def _stopped(workers: Sequence[Worker]) -> list[Reason]:
    """Workers that do not run, grouped by reason."""
    together: dict[tuple[str, str], list[str]] = {}
    for worker in workers:
        if worker.reason and worker.phase in {"Pending", "Failed"}:
            together.setdefault((worker.reason, worker.message), []).append(worker.name)
    return [
        Reason(
            f"{', '.join(names)}: {reason}{f': {message}' if message else ''}",
            _REMEDIES.get(reason, f"kubectl describe pod {names[0]}"),
        )
        for (reason, message), names in together.items()
    ]


def _starting(workers: Sequence[Worker]) -> list[Reason]:
    names = [worker.name for worker in workers if worker.phase == "Pending" and not worker.reason]
    return [Reason(f"{', '.join(names)}: starting")] if names else []


def _desired(job: ElasticTrainingJob, status: JobStatus) -> int:
    return status.desired_replicas if status.desired_replicas is not None else job.spec.desired_replicas


def _spares(job: ElasticTrainingJob, status: JobStatus) -> list[Reason]:
    """Why fewer warm spares are ready than the spec requests; empty if all are ready."""
    asked, found = job.spec.warm_spares, status.spares
    if found is None or found.ready >= asked:
        return []
    state = f"{found.ready} of {asked} warm spares are ready"
    if status.generation is None or not status.generation.size:
        return [Reason(f"{state}: they start once the job trains")]
    if found.desired < asked:
        why = f"the unused capacity holds {found.desired}"
        return [Reason(f"{state}: {why}", "free or add nodes, or lower spec.warmSpares")]
    return [Reason(f"{state}: the others are starting")]


def _batch(job: ElasticTrainingJob, status: JobStatus) -> list[Reason]:
    """Why the batch of a step is not larger; empty without ``spec.batch``, and before the job trains."""
    bounds = job.spec.batch
    if bounds is None or status.generation is None:
        return []
    return [Reason(*why_this_batch(status.batch, bounds.min, bounds.max))]


UNEVEN = 0.9
"""Below this part of an equal share, the slowest rank is named."""


def _shares(status: JobStatus) -> list[Reason]:
    """The slowest ranks with ``spec.shares: Measured``; empty if all compute about as much."""
    shares = status.rank_shares
    if not shares or shares[0].share > UNEVEN:
        return []
    return [Reason(f"{shares_line(shares)}; 1 is an equal share", more_share(shares))]


def _bounds(job: ElasticTrainingJob, status: JobStatus) -> Reason:
    spec, desired = job.spec, _desired(job, status)
    state = f"{status.ready_replicas} of {desired} desired {spec.replica}s train"
    trains = status.ready_replicas >= desired > 0  # a job that lacks workers gains none by more of them
    if desired >= spec.max_replicas:
        return Reason(f"{state}; maxReplicas is {spec.max_replicas}", "raise spec.maxReplicas" if trains else "")
    if spec.replicas is None and (queue := queued.queue_of(job)):
        return Reason(f"{state}; Kueue's queue {queue} decides between {spec.min_replicas} and {spec.max_replicas}")
    if spec.replicas is None:
        return Reason(f"{state}; the operator chooses between {spec.min_replicas} and {spec.max_replicas}")
    return Reason(
        f"{state}: spec.replicas is {spec.replicas} (between {spec.min_replicas} and {spec.max_replicas})",
        f"elastrain scale {job.name} {desired + 1}" if trains else "",
    )
