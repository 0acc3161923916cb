"""Parses the API server's objects and keeps only the fields that the page shows. Pure; the only parser of objects
here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastrain.api import names
from elastrain_cli.client import Event, Worker
from elastrain_cli.client.records import event_of, worker_of
from elastrain_resource.accelerators import KNOWN, is_extended, limits_of

CPU_WORKERS = "workers without accelerator"
"""The resource name for a worker without extended resources."""
_ENDED = frozenset({"Succeeded", "Failed"})
_META = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "generation")
_TEMPLATE = {"spec": {"containers": [{"name": names.TRAINER_CONTAINER, "image": "-", "command": ["-"]}]}}
"""Replaces every job's pod template, which may be large, may contain secrets, and is not shown."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job without the fields that the page does not use."""

    uid: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A worker's pod and its accelerators."""

    job: str
    """Key of its job."""
    worker: Worker
    resource: str
    """The extended resource with the largest request, else :data:`CPU_WORKERS`."""
    count: int
    """Number of these, held from the pod's binding to its end."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node that could run workers."""

    name: str
    ready: bool
    cordoned: bool
    devices: tuple[tuple[str, int], ...]
    """Allocatable extended resources by name."""


@dataclass(frozen=True, slots=True)
class EventFacts:
    """An event about a job."""

    job: str
    event: Event


def job(body: Mapping[str, Any]) -> JobFacts:
    """Facts of a job."""
    meta = {name: body["metadata"][name] for name in _META if name in body["metadata"]}
    if queue := (body["metadata"].get("labels") or {}).get(names.LABEL_QUEUE):
        meta["labels"] = {names.LABEL_QUEUE: queue}
    kept = {
        "apiVersion": body.get("apiVersion", names.API_VERSION), "kind": body.get("kind", names.KIND),
        "metadata": meta, "spec": {**body.get("spec", {}), "template": _TEMPLATE}, "status": body.get("status", {}),
    }  # fmt: skip
    return JobFacts(str(meta.get("uid", "")), kept)


def pod(body: Mapping[str, Any]) -> PodFacts | None:
    """Facts of a worker's pod; None for another pod."""
    meta, spec = body["metadata"], body.get("spec", {})
    owner = (meta.get("labels") or {}).get(names.LABEL_JOB)
    if not owner:
        return None
    worker = worker_of(body)
    resource, count = _devices(spec)
    holds = bool(worker.node) and body.get("status", {}).get("phase") not in _ENDED
    return PodFacts(f"{meta.get('namespace', '')}/{owner}", worker, resource, count if holds else 0)


def node(body: Mapping[str, Any]) -> NodeFacts:
    """Facts of a node."""
    meta, spec, status = body["metadata"], body.get("spec", {}), body.get("status", {})
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
    devices = [(r, _number(n)) for r, n in sorted((status.get("allocatable") or {}).items()) if is_extended(r)]
    return NodeFacts(meta["name"], ready, bool(spec.get("unschedulable")), tuple((r, n) for r, n in devices if n))


def event(body: Mapping[str, Any]) -> EventFacts:
    """Facts of an event."""
    about = body.get("involvedObject", {})
    return EventFacts(f"{about.get('namespace', '')}/{about.get('name', '')}", event_of(body))


def is_accelerator(resource: str) -> bool:
    """Whether device plugins name it an accelerator; the most requested resource of a worker is shown in any case."""
    return resource in KNOWN or resource.startswith("nvidia.com/mig-")


def _devices(spec: Mapping[str, Any]) -> tuple[str, int]:
    """As the operator counts a pod: the largest request of one extended resource, 1 for a pod without."""
    total: dict[str, int] = {}
    for container in spec.get("containers") or []:
        for resource, amount in limits_of(container).items():
            if is_extended(resource):
                total[resource] = total.get(resource, 0) + _number(amount)
    known = {r: n for r, n in total.items() if n and is_accelerator(r)} or {r: n for r, n in total.items() if n}
    if not known:
        return CPU_WORKERS, 1
    resource = max(sorted(known), key=lambda r: known[r])
    return resource, known[resource]


def _number(amount: Any) -> int:
    """The whole number in ``amount``; another form (``1k`` is allowed but unusual) counts as absent."""
    text = str(amount)
    return int(text) if text.isascii() and text.isdigit() else 0
