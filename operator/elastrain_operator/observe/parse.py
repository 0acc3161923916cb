"""Raw API objects → plain values. The only code that depends on a pod's wire format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from elastrain.api import manifest, names
from elastrain.api.job import JobSpec, JobStatus
from elastrain.api.records import Termination
from elastrain_operator.model import Ending, JobRef, Pod, Trouble
from elastrain_operator.observe import resources

Raw = Mapping[str, Any]

DEFAULT_GRACE = 30.0
"""Kubernetes' default of terminationGracePeriodSeconds."""
MAX_GRACE = 1e9
"""Kubernetes accepts any number of seconds; larger ones are cut to about 30 years."""
MAX_ORDINAL = 2**31 - 1
"""A label that another client has written cannot exhaust a job's ordinals."""
CREATING_PATIENCE = 60.0
"""Seconds after which a container that is still being created is reported; the pod's status shows no cause."""

_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME = re.compile(r"persistent ?volume|volume node affinity|volume binding|storageclass", re.IGNORECASE)


class SpecInvalid(ValueError):
    """The stored spec breaks a rule of the API; the message names field, value and rule."""


def timestamp(text: str) -> datetime:
    """An RFC 3339 time of the API server."""
    return datetime.fromisoformat(text)


def job_ref(body: Raw) -> JobRef:
    """Identity of a job from its body."""
    meta = body["metadata"]
    return JobRef(meta["namespace"], meta["name"], meta["uid"], meta.get("generation"))


def is_ours(body: Raw) -> bool:
    """Whether a job names this operator as its manager."""
    spec = body.get("spec")
    manager = spec.get("managedBy") if isinstance(spec, Mapping) else None
    return manager in (None, names.CONTROLLER)


def job_spec(body: Raw) -> JobSpec:
    """The spec of a job.

    Raises :class:`SpecInvalid` if it breaks a rule. The API server enforces the same rules, so this happens only to a
    job that was stored under another version of the CRD.
    """
    try:
        return JobSpec.model_validate(body.get("spec", {}))
    except ValidationError as error:
        raise SpecInvalid("; ".join(manifest.problem(e, "spec") for e in error.errors(include_url=False))) from error


def job_status(body: Raw) -> JobStatus:
    """The status of a job; empty if it is absent or unreadable: the next pass writes it from the observation."""
    try:
        return JobStatus.model_validate(body.get("status") or {})
    except ValidationError:
        return JobStatus()


def pod(body: Raw) -> Pod | None:
    """A worker pod; None if the object is not one (its ordinal label is missing or invalid)."""
    meta, status = body["metadata"], body.get("status") or {}
    try:
        ordinal = int(meta.get("labels", {})[names.LABEL_ORDINAL])
    except (KeyError, ValueError):
        return None
    if not 0 <= ordinal <= MAX_ORDINAL:
        return None
    spec = body.get("spec") or {}
    created = timestamp(meta["creationTimestamp"])
    trainer = _trainer_status(spec, status)
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    ready = conditions.get("Ready", {})
    ending = _ending(status, trainer, created)
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        ordinal=ordinal,
        created=created,
        started=_started(trainer) is not None,
        ready=ready.get("status") == "True",
        went_unready=_went_unready(ready, _started(trainer)),
        terminating="deletionTimestamp" in meta,
        grace=min(float(_or(spec.get("terminationGracePeriodSeconds"), DEFAULT_GRACE)), MAX_GRACE),
        ending=ending,
        over=status.get("phase") in ("Succeeded", "Failed"),
        disruption=_true_reason(conditions.get("DisruptionTarget")),
        trouble=None if ending else _trouble(meta["name"], status, conditions),
        node=str(spec.get("nodeName") or ""),
        template=str(meta.get("labels", {}).get(names.LABEL_TEMPLATE, "")),
        bound=_bound(conditions.get("PodScheduled"), _started(trainer)),
        accelerators=_accelerators(spec),
        demand=resources.demand(spec),
    )


def pods(parsed: Iterable[Pod]) -> tuple[Pod, ...]:
    """Pods by ordinal."""
    return tuple(sorted(parsed, key=lambda p: (p.ordinal, p.uid)))


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _trainer_status(spec: Raw, status: Raw) -> Raw:
    """Container status of the trainer; empty if the kubelet has not reported it yet."""
    containers = [c["name"] for c in spec.get("containers") or []]
    name = names.TRAINER_CONTAINER if names.TRAINER_CONTAINER in containers else next(iter(containers), "")
    return next((c for c in status.get("containerStatuses") or [] if c.get("name") == name), {})


def _started(trainer: Raw) -> datetime | None:
    """When the trainer container started; None: never."""
    state = trainer.get("state") or {}
    at = (state.get("running") or state.get("terminated") or {}).get("startedAt")
    return timestamp(at) if at else None


def _bound(scheduled: Raw | None, started: datetime | None) -> datetime | None:
    """When the pod was bound to a node; for a pod bound without a scheduler, when it started."""
    at = (scheduled or {}).get("lastTransitionTime")
    return timestamp(at) if scheduled and scheduled.get("status") == "True" and at else started


def _accelerators(spec: Raw) -> int:
    """Accelerators of a pod: the largest amount in its containers' limits of any one extended resource; 1 if none.

    Not the sum over resources: beside eight GPUs a pod may request eight network devices.
    """
    counts: dict[str, int] = {}
    for container in spec.get("containers") or []:
        for resource, quantity in ((container.get("resources") or {}).get("limits") or {}).items():
            if "/" in resource and "kubernetes.io/" not in resource and str(quantity).isdigit():
                counts[resource] = counts.get(resource, 0) + int(quantity)
    return max(counts.values(), default=0) or 1


def _went_unready(ready: Raw, started: datetime | None) -> bool:
    """Whether Ready turned False or Unknown after the trainer had started (node lifecycle controller, or a probe)."""
    at = ready.get("lastTransitionTime")
    return started is not None and ready.get("status") != "True" and at is not None and timestamp(at) > started


def _true_reason(condition: Raw | None) -> str:
    if not condition or condition.get("status") != "True":
        return ""
    return str(condition.get("reason") or "Unknown")


def _ending(status: Raw, trainer: Raw, created: datetime) -> Ending | None:
    """How the worker ended. The trainer container decides: a sidecar may keep the pod's phase at Running."""
    terminated = (trainer.get("state") or {}).get("terminated")
    if terminated:
        return Ending(
            at=timestamp(terminated["finishedAt"]) if terminated.get("finishedAt") else created,
            record=_record(terminated.get("message") or ""),
            exit_code=terminated.get("exitCode"),
            reason=status.get("reason") or terminated.get("reason") or "",
            message=status.get("message") or terminated.get("message") or "",
        )
    if status.get("phase") in ("Failed", "Succeeded"):
        if check := _failed_check(status):
            return check
        return Ending(at=created, reason=status.get("reason") or "", message=status.get("message") or "")
    return None


def _failed_check(status: Raw) -> Ending | None:
    """The end of a worker that never ran, because the pre-flight check failed."""
    for container in status.get("initContainerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated") or {}
        if container.get("name") == names.PREFLIGHT_CONTAINER and ended.get("exitCode") and ended.get("finishedAt"):
            at, text = timestamp(ended["finishedAt"]), ended.get("message") or ""
            return Ending(at, exit_code=ended["exitCode"], reason="PreflightFailed", message=text)
    return None


def _record(message: str) -> Termination | None:
    """The agent's termination record; None if the message is not one (the kubelet's text, a torn write)."""
    try:
        return Termination.decode(message)
    except ValidationError:
        return None


def _trouble(pod_name: str, status: Raw, conditions: Mapping[str, Raw]) -> Trouble | None:
    """Why the pod does not start, the most specific reason first; None if there is no trouble (yet)."""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        text = scheduled.get("message") or scheduled.get("reason") or "no reason given"
        reason = "VolumeFailed" if _VOLUME.search(text) else str(scheduled.get("reason") or "Unschedulable")
        return Trouble(reason, f"pod {pod_name}: {text}")
    creating = None
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting")
        if not waiting:
            continue
        reason = waiting.get("reason", "")
        where = f"pod {pod_name}, container {container['name']}"
        text = waiting.get("message") or reason
        if reason in _IMAGE:
            return Trouble("ImagePullFailed", f"{where}: image {container.get('image', '?')}: {reason}: {text}")
        if reason in _CONFIG:
            return Trouble("ContainerConfigFailed", f"{where}: {reason}: {text}")
        if reason == "CrashLoopBackOff":
            return Trouble("ContainerCrashes", f"{where}: {text}")
        creating = creating or Trouble(
            "ContainerNotCreated",
            f"{where}: not created {CREATING_PATIENCE:.0f} s after the pod, often because a volume cannot be mounted; "
            f"`kubectl describe pod {pod_name}` shows the node's events",
            patience=CREATING_PATIENCE,
        )
    return creating
