"""Raw API objects → plain values. The only code that depends on a pod's wire format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime

from pydantic import ValidationError

from elastrain.api import names
from elastrain_operator.allocation import resources
from elastrain_operator.facts import DEFAULT_GRACE, WORKLOAD_NOTE, JobRef, Pod, Slot
from elastrain_operator.raw import Raw, mapping, number, objects, text
from elastrain_operator.watch import containers, owner
from elastrain_resource import manifest
from elastrain_resource.job import ConditionType, JobSpec, JobStatus

MAX_GRACE = 1e9
"""Kubernetes accepts any number of seconds; larger ones are cut to about 30 years."""
MOST_BYTES = 256 << 10
"""Of a spec as JSON. Kubernetes itself accepts 1.5 MiB for an object."""
SPEC_BYTES = "specBytes"
"""Beside the spec of a job that :func:`bounded` has emptied: its size."""
MOST_ACCELERATORS = 2**31 - 1
"""Kubernetes accepts any number in a pod's limits."""
_PROBLEMS = 3
"""Most problems of a status that are named."""

_COUNT = re.compile(r"[0-9]{1,18}")
_KEPT = {"false": True, "true": False}


class SpecInvalid(ValueError):
    """The stored spec breaks a rule of the API; the message names field, value and rule."""


class StatusUnreadable(ValueError):
    """The stored status cannot be read; the message names field, value and rule. Nothing may follow from it."""


def bounded(body: Raw) -> Raw:
    """The job, without a spec that is larger than :data:`MOST_BYTES`: no tenant fills the operator's memory.
    :func:`job_spec` refuses it by its size."""
    spec = body.get("spec")
    size = len(json.dumps(spec, separators=(",", ":")))
    if size <= MOST_BYTES:
        return body
    return {**body, "spec": {k: v for k, v in mapping(spec).items() if k == "managedBy"}, SPEC_BYTES: size}


def timestamp(text: str) -> datetime:
    """An RFC 3339 time of the API server."""
    return datetime.fromisoformat(text)


def job_ref(body: Raw) -> JobRef:
    """Identity of a job from its body."""
    meta = body["metadata"]
    return JobRef(meta["namespace"], meta["name"], meta["uid"], meta.get("generation"))


def is_ours(body: Raw) -> bool:
    """Whether a job names this operator as its manager."""
    return mapping(body.get("spec")).get("managedBy") in (None, names.CONTROLLER)


def job_spec(body: Raw) -> JobSpec:
    """The spec of a job.

    Raises :class:`SpecInvalid` if it breaks a rule. The API server enforces the same rules but that of the size: this
    happens only to a job that was stored under another version of the CRD, or that is too large.
    """
    if (size := body.get(SPEC_BYTES)) is not None:
        raise SpecInvalid(
            f"spec: {size} bytes: must be at most {MOST_BYTES} as JSON; mount large data from a ConfigMap or a volume"
        )
    try:
        return JobSpec.model_validate(body.get("spec", {}))
    except ValidationError as error:
        raise SpecInvalid("; ".join(manifest.problems(error, "spec"))) from None


def job_status(body: Raw) -> JobStatus:
    """The status of a job; empty if it is absent.

    Raises :class:`StatusUnreadable` if a field is damaged or a newer operator's, or the job has ended in a way that
    this version does not know. Unknown fields and words alone are kept.
    """
    try:
        status = JobStatus.read(body.get("status") or {})
    except ValidationError as error:
        raise StatusUnreadable("; ".join(manifest.problems(error, "status")[:_PROBLEMS])) from None
    ends = {ConditionType.SUCCEEDED, ConditionType.FAILED}
    if status.completion_time and not any(c.type in ends and c.status == "True" for c in status.conditions):
        raise StatusUnreadable(
            f"status.completionTime: {status.completion_time}: needs a condition Succeeded or Failed that is True"
        )
    return status


def pod(body: Raw, now: datetime, before: Pod | None = None) -> Pod | None:
    """A worker pod at ``now``; None: the object is not a worker of a job (see :mod:`elastrain_operator.watch.owner`).

    ``before``: the same pod as this operator knew it. A fact is dated by when it was first observed: the times inside
    a pod are those of other machines' clocks (API server, scheduler, kubelet) and are never compared with ``now``.

    Never raises: a field of an unexpected type counts as absent.
    """
    meta, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    job, name = owner.owner(body), text(meta.get("name"))
    place = owner.ordinal(name, job.job) if job else None
    if place is None:
        return None
    trainer = containers.trainer_status(body)
    conditions = {text(c.get("type")): c for c in objects(status.get("conditions"))}
    started, ready, deleted = _has_started(trainer), is_ready(body), bool(meta.get("deletionTimestamp"))
    ending = containers.ending(body, before.ending.at if before and before.ending else now)
    node = text(spec.get("nodeName"))
    is_bound = node or started or mapping(conditions.get("PodScheduled")).get("status") == "True"
    return Pod(
        name=name,
        uid=text(meta.get("uid")),
        ordinal=place,
        seen=before.seen if before else now,
        started=started,
        ready=ready,
        went_unready=started and not ready and (_is_silenced(conditions) or _was_ready(before)),
        node_silent=_is_silenced(conditions),
        terminating=deleted,
        deleted=((before.deleted if before else None) or now) if deleted else None,
        finalizers=tuple(map(str, meta.get("finalizers") or ())) if deleted else (),
        grace=_grace(spec),
        ending=ending,
        over=status.get("phase") in ("Succeeded", "Failed"),
        processes_ended=processes_ended(spec, status, trainer),
        disruption=_true_reason(mapping(conditions.get("DisruptionTarget"))),
        trouble=None if ending else containers.trouble(body),
        node=node,
        template=text(mapping(meta.get("labels")).get(names.LABEL_TEMPLATE)),
        bound=((before.bound if before else None) or now) if is_bound else None,
        accelerators=_accelerators(spec),
        demand=resources.with_claims(resources.demand(spec), spec, text(meta.get("namespace"))),
        resized=any(f.get("subresource") == "resize" for f in objects(meta.get("managedFields"))),
        priority=number(spec.get("priority")) or 0,
        evicting=bool(status.get("nominatedNodeName")) and not node,
        workload=text(mapping(meta.get("annotations")).get(WORKLOAD_NOTE)),
        slot=_slot(mapping(meta.get("labels"))),
        etcd=before.etcd if before else containers.etcd(body),
        kept=_KEPT.get(text(mapping(meta.get("annotations")).get(names.SAFE_TO_EVICT))),
    )


def _slot(labels: Raw) -> Slot | None:
    group, place = text(labels.get(names.LABEL_GROUP)), text(labels.get(names.LABEL_PLACE))
    return Slot(int(group), int(place)) if _COUNT.fullmatch(group) and _COUNT.fullmatch(place) else None


def is_ready(body: Raw) -> bool:
    """Whether a pod is Ready."""
    conditions = objects(mapping(body.get("status")).get("conditions"))
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def has_started(body: Raw) -> bool:
    """Whether the trainer of a pod has started, at any time."""
    return _has_started(containers.trainer_status(body))


def pods(parsed: Iterable[Pod]) -> tuple[Pod, ...]:
    """Pods by ordinal."""
    return tuple(sorted(parsed, key=lambda p: (p.ordinal, p.uid)))


def _grace(spec: Raw) -> float:
    seconds = number(spec.get("terminationGracePeriodSeconds"))
    return DEFAULT_GRACE if seconds is None else float(min(max(seconds, 0), MAX_GRACE))


def _has_started(trainer: Raw) -> bool:
    """Whether the trainer container runs or has run."""
    state = mapping(trainer.get("state"))
    return bool(mapping(state.get("running") or state.get("terminated")).get("startedAt"))


def _accelerators(spec: Raw) -> int:
    """Accelerators of a pod: the largest amount in its containers' limits of any one extended resource; 1 if none.

    Not the sum over resources: beside eight GPUs a pod may request eight network devices.
    """
    counts: dict[str, int] = {}
    for container in objects(spec.get("containers")):
        for resource, quantity in mapping(mapping(container.get("resources")).get("limits")).items():
            if "/" in resource and "kubernetes.io/" not in resource and _COUNT.fullmatch(str(quantity)):
                counts[resource] = counts.get(resource, 0) + int(str(quantity))
    return min(max(counts.values(), default=0), MOST_ACCELERATORS) or 1


def _is_silenced(conditions: Raw) -> bool:
    """Whether the node lifecycle controller has set Ready to False, since it does not hear the node: it leaves
    ContainersReady at True and gives no reason. The kubelet always gives one."""
    ready, containers = mapping(conditions.get("Ready")), mapping(conditions.get("ContainersReady"))
    by_controller = containers.get("status") == "True" and not ready.get("reason")
    return ready.get("status") == "Unknown" or (ready.get("status") == "False" and by_controller)


def _was_ready(before: Pod | None) -> bool:
    return before is not None and (before.ready or before.went_unready)


def _true_reason(condition: Raw) -> str:
    return (text(condition.get("reason")) or "Unknown") if condition.get("status") == "True" else ""


_UNLOCATED = "ContainerStatusUnknown"
"""The kubelet's reason for a container that it has not found: its processes may live."""


def processes_ended(spec: Raw, status: Raw, trainer: Raw) -> bool:
    """Whether no process of the trainer container lives, and none comes.

    ``trainer``: its container status. A container that may start again in its place proves nothing before the pod's
    end: its successor may have registered already.
    """
    terminated = mapping(mapping(trainer.get("state")).get("terminated"))
    if not terminated or terminated.get("reason") == _UNLOCATED:
        return False
    return status.get("phase") in ("Succeeded", "Failed") or not _may_restart(spec)


def _may_restart(spec: Raw) -> bool:
    """Whether the pod, or a rule of one of its containers (which may restart all of them), starts containers again."""
    containers = [*objects(spec.get("containers")), *objects(spec.get("initContainers"))]
    if spec.get("restartPolicy") != "Never" or any(c.get("restartPolicyRules") for c in containers):
        return True
    return any(c.get("restartPolicy") not in (None, "Never") for c in objects(spec.get("containers")))
