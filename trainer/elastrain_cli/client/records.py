"""The client's records beside jobs, as plain values. The only parser of these API objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from elastrain.api import names
from elastrain.api.base import Unreadable
from elastrain.api.printable import printable, printable_tree
from elastrain.api.records import Termination
from elastrain_cli.client.errors import Refused
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.job.shown import Event, Worker, time_of


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a worker's log."""

    worker: str
    text: str


def job_of(body: Mapping[str, Any]) -> ElasticTrainingJob:
    """The job of an API object. Fields unknown to this version are kept, and sent back by ``submit``.

    Raises :class:`Refused` if a known field has a value that this version does not know.
    """
    body = {**body, "status": printable_tree(body["status"])} if "status" in body else body
    try:
        return ElasticTrainingJob.model_validate(body, extra="allow")
    except ValidationError as error:
        name = body.get("metadata", {}).get("name", "?")
        fields = ", ".join(".".join(map(str, e["loc"])) for e in error.errors(include_url=False))
        raise Refused(
            f"job {name} has values of another version of elastrain: {fields}; upgrade this client "
            "(install the wheel of the operator's version)"
        ) from error


def worker_of(pod: Mapping[str, Any]) -> Worker:
    """The worker of a pod."""
    meta, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    reason, message = map(printable, _why(status))
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
    body = printable_tree(body)
    time = body.get("lastTimestamp") or body.get("eventTime") or body["metadata"].get("creationTimestamp")
    return Event(
        time=time_of(time),
        type=body.get("type", "Normal"),
        reason=body.get("reason", ""),
        message=body.get("message", ""),
        count=int(body.get("count") or 1),
    )


def _why(status: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of the first fault that keeps the pod or a container from running."""
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for state in (c.get("state", {}) for c in containers):
        stopped = state.get("waiting") or state.get("terminated")
        if stopped and stopped.get("reason") not in {None, "Completed", "PodInitializing", "ContainerCreating"}:
            return _reason_of(str(stopped["reason"]), str(stopped.get("message", "")))
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("reason", "")), str(condition.get("message", ""))
    return str(status.get("reason", "")), str(status.get("message", ""))


def _reason_of(reason: str, message: str) -> tuple[str, str]:
    """Reason and message of an ended container; those of the agent's termination record (JSON) if there is one."""
    try:
        last = Termination.decode(message)
    except Unreadable:
        return reason, message
    return last.reason or reason, last.message
