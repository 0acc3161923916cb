"""Kueue's objects → plain values. Never raises: a field of an unexpected type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from elastrain_operator.facts import PodPlacement
from elastrain_operator.kueue import render
from elastrain_operator.kueue.workload import (
    ALWAYS,
    CLASS_LABEL,
    EXTRAS_NOTE,
    QUEUE_LABEL,
    Flavor,
    Queue,
    Request,
    Workload,
)
from elastrain_operator.raw import mapping, objects, text
from elastrain_resource.job import JobSpec

Raw = Mapping[str, Any]


def workload(body: Raw) -> Workload:
    """One Workload of a job."""
    meta, spec, status = (mapping(body.get(k)) for k in ("metadata", "spec", "status"))
    conditions = {text(c.get("type")): c for c in objects(status.get("conditions"))}
    notes, admission = mapping(meta.get("annotations")), mapping(status.get("admission"))
    assigned = next(iter(objects(admission.get("podSetAssignments"))), {})
    pods = next(iter(objects(spec.get("podSets"))), {})
    ref = mapping(spec.get("priorityClassRef"))
    index = text(notes.get(render.INDEX))
    return Workload(
        name=text(meta.get("name")),
        uid=text(meta.get("uid")),
        index=int(index) if index.isdigit() else 0,
        queue=text(spec.get("queueName")),
        count=int(pods.get("count") or 0),
        priority=int(spec.get("priority") or 0),
        priority_class=text(ref.get("name")) if ref.get("group") == "kueue.x-k8s.io" else "",
        active=spec.get("active") is not False,
        suspended=notes.get(render.SUSPENDED) == "true",
        shape=text(notes.get(render.SHAPE)),
        reserved=bool(admission) and _true(conditions, "QuotaReserved"),
        admitted=_true(conditions, "Admitted"),
        evicted=(text(conditions["Evicted"].get("reason")) or "Evicted") if _true(conditions, "Evicted") else "",
        ready=_true(conditions, "PodsReady"),
        finished=_true(conditions, "Finished"),
        going=bool(meta.get("deletionTimestamp")),
        message=_message(conditions, status),
        flavors=tuple(sorted({text(f) for f in mapping(assigned.get("flavors")).values()})),
        updates=_updates(status),
        topology=bool(assigned.get("topologyAssignment") or assigned.get("delayedTopologyRequest")),
    )


def _true(conditions: Mapping[str, Raw], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _message(conditions: Mapping[str, Raw], status: Raw) -> str:
    """Why it is not admitted, in Kueue's words."""
    if _true(conditions, "Evicted"):
        return text(conditions["Evicted"].get("message"))
    waits = [c for c in objects(status.get("admissionChecks")) if c.get("state") not in (None, "Ready")]
    if _true(conditions, "QuotaReserved") and waits:
        return "; ".join(f"{text(c.get('name'))}: {text(c.get('message')) or text(c.get('state'))}" for c in waits)
    return text(conditions.get("QuotaReserved", {}).get("message"))


def _updates(status: Raw) -> PodPlacement:
    """``podSetUpdates`` of all admission checks."""
    found: list[Raw] = []
    for check in objects(status.get("admissionChecks")):
        found += objects(check.get("podSetUpdates"))

    def merged(field: str) -> tuple[tuple[str, str], ...]:
        return tuple(sorted({k: str(v) for u in found for k, v in mapping(u.get(field)).items()}.items()))

    tolerations = tuple(t for u in found for t in objects(u.get("tolerations")))
    return PodPlacement(merged("nodeSelector"), tolerations, merged("labels"), merged("annotations"))


def flavor(body: Raw) -> Flavor:
    """A ResourceFlavor."""
    spec = mapping(body.get("spec"))
    labels = tuple(sorted((k, str(v)) for k, v in mapping(spec.get("nodeLabels")).items()))
    return Flavor(labels, tuple(objects(spec.get("tolerations"))))


class LocalQueue(NamedTuple):
    """A LocalQueue."""

    cluster_queue: str
    closed: str
    """Why it admits nothing now, in Kueue's words: it is stopped, or its ClusterQueue is missing or inactive."""


def local_queue(body: Raw) -> LocalQueue:
    """A LocalQueue; one that Kueue has not looked at yet counts as open."""
    conditions = {c.get("type"): c for c in objects(mapping(body.get("status")).get("conditions"))}
    active = conditions.get("Active", {})
    said = text(active.get("message")) or text(active.get("reason")) or "it is not active"
    return LocalQueue(
        text(mapping(body.get("spec")).get("clusterQueue")), said if active.get("status") == "False" else ""
    )


def is_strict(body: Raw) -> bool:
    """Whether a ClusterQueue is StrictFIFO."""
    return mapping(body.get("spec")).get("queueingStrategy") == "StrictFIFO"


def queue(local: LocalQueue | None, strict: Mapping[str, bool]) -> Queue | None:
    """The queue of a job. A ClusterQueue that does not exist admits nothing, so nothing is queued ahead in it."""
    return None if local is None else Queue(local.cluster_queue, strict.get(local.cluster_queue, True), local.closed)


def label(body: Raw, key: str) -> str:
    """A label of an object; empty: it has none."""
    return text(mapping(mapping(body.get("metadata")).get("labels")).get(key))


def request(body: Raw, spec: JobSpec, size: int, ended: str) -> Request:
    """What a job asks. ``size``: desired workers of the last pass; ``ended``: its terminal condition, or empty."""
    meta = mapping(body.get("metadata"))
    notes = mapping(meta.get("annotations"))
    return Request(
        base=render.base_name(text(meta.get("name")), text(meta.get("uid"))),
        queue=label(body, QUEUE_LABEL),
        minimum=spec.min_replicas,
        wanted=spec.desired_replicas,
        pods=spec.group_size,
        size=size,
        priority_class=label(body, CLASS_LABEL),
        suspend=spec.suspend,
        ended=ended,
        shape=render.shape(spec.template),
        always_ahead=notes.get(EXTRAS_NOTE) == ALWAYS,
    )
