"""What the client returns beside jobs. Plain values, read from the API server's objects here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from elastrain.api import names
from elastrain.api.job import ElasticTrainingJob
from elastrain.api.records import Termination
from elastrain.client.errors import Refused


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker pod of a job."""

    name: str
    ordinal: int
    """Ordinals are never used twice by a job: a higher one is a younger worker."""
    phase: str
    """Of the pod: Pending, Running, Succeeded, Failed or Unknown; Terminating once it is being deleted."""
    node: str
    """Empty before it is scheduled."""
    reason: str
    """Why it waits or has ended, in Kubernetes' words: Unschedulable, ImagePullBackOff, OOMKilled; often empty."""
    message: str
    """The same as a sentence."""
    started: datetime | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job, as the operator told it."""

    time: datetime | None
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a worker's log."""

    worker: str
    text: str


def job_of(body: Mapping[str, Any]) -> ElasticTrainingJob:
    """The job. Raises :class:`Refused` if it has fields that this version does not know."""
    try:
        return ElasticTrainingJob.model_validate(body)
    except ValidationError as error:
        name = body.get("metadata", {}).get("name", "?")
        fields = ", ".join(".".join(map(str, e["loc"])) for e in error.errors(include_url=False))
        raise Refused(
            f"job {name} is of another version of elastrain: {fields}; upgrade this client (pip install -U elastrain)"
        ) from error


def worker_of(pod: Mapping[str, Any]) -> Worker:
    """The worker whose pod this is."""
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    reason, message = _why(status)
    terminating = bool(meta.get("deletionTimestamp"))
    return Worker(
        name=meta["name"],
        ordinal=int(meta.get("labels", {}).get(names.LABEL_ORDINAL, -1)),
        phase="Terminating" if terminating else status.get("phase", "Pending"),
        node=spec.get("nodeName", ""),
        reason=reason,
        message=message,
        started=time_of(status.get("startTime")),
    )


def event_of(body: Mapping[str, Any]) -> Event:
    """The event."""
    time = body.get("lastTimestamp") or body.get("eventTime") or body["metadata"].get("creationTimestamp")
    return Event(
        time=time_of(time),
        type=body.get("type", "Normal"),
        reason=body.get("reason", ""),
        message=body.get("message", ""),
        count=int(body.get("count") or 1),
    )


def time_of(text: Any) -> datetime | None:
    """Kubernetes' time stamp; None where there is none."""
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None


def _why(status: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of whatever keeps the pod, or one of its containers, from running."""
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for state in (c.get("state", {}) for c in containers):
        stopped = state.get("waiting") or state.get("terminated")
        if stopped and stopped.get("reason") not in {None, "Completed", "PodInitializing", "ContainerCreating"}:
            return _in_words(str(stopped["reason"]), str(stopped.get("message", "")))
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason", "")), str(condition.get("message", ""))
    return str(status.get("reason", "")), str(status.get("message", ""))


def _in_words(reason: str, message: str) -> tuple[str, str]:
    """The same of an ended container; where its agent has left last words, which are JSON, theirs."""
    try:
        last = Termination.decode(message)
    except ValidationError:
        return reason, message
    return last.reason or reason, last.message
