"""A job's Workloads and the pods that are charged to them → manifests. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from elastrain.api import names
from elastrain_operator.facts import WORKLOAD_NOTE, Charge, JobRef, PodPlacement
from elastrain_operator.kueue.workload import API_VERSION, GROUP, POD_SET, QUEUE_LABEL, Create
from elastrain_operator.pod.manifest import owned

INDEX = f"{names.GROUP}/kueue-index"
"""Annotation of a Workload: 0 for the base."""
SHAPE = f"{names.GROUP}/kueue-shape"
"""Annotation of a Workload: :func:`shape` of the template it was made from."""
SUSPENDED = f"{names.GROUP}/kueue-suspended"
"""Annotation of a Workload that was deactivated for the job's ``suspend``."""
TOPOLOGY_GATE = f"{GROUP}/topology"
_POD_FIELDS = (
    "affinity", "nodeSelector", "overhead", "priorityClassName", "runtimeClassName", "schedulerName", "tolerations",
)  # fmt: skip
_TOPOLOGY = {
    f"{GROUP}/podset-required-topology": "required",
    f"{GROUP}/podset-preferred-topology": "preferred",
    f"{GROUP}/podset-unconstrained-topology": "unconstrained",
}

Body = dict[str, Any]


def base_name(job: str, uid: str) -> str:
    """Name of the base Workload; extras append their index."""
    return f"{job}-{uid[:8]}"


def pod_template(template: Mapping[str, Any]) -> Body:
    """The part of a template that decides where its pods fit, without images, commands and volumes."""
    spec = template.get("spec") or {}

    def containers(field: str) -> list[Body]:
        keep = ("name", "resources", "restartPolicy")
        return [{k: c[k] for k in keep if c.get(k) is not None} for c in spec.get(field) or []]

    made = {k: spec[k] for k in _POD_FIELDS if spec.get(k)}
    made |= {"containers": containers("containers"), "restartPolicy": "Never"}
    if spec.get("initContainers"):
        made["initContainers"] = containers("initContainers")
    return {"spec": made}


def topology(template: Mapping[str, Any]) -> Body:
    """``topologyRequest`` by the template's annotations, which are Kueue's own; empty: none."""
    notes = (template.get("metadata") or {}).get("annotations") or {}
    found = {field: notes[note] for note, field in _TOPOLOGY.items() if note in notes}
    if "unconstrained" in found:
        found["unconstrained"] = found["unconstrained"] == "true"
    return found


def shape(template: Mapping[str, Any]) -> str:
    """A digest of what pods of a template ask of a node: a Workload of another shape is replaced."""
    text = json.dumps([pod_template(template), topology(template)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def workload(
    job: JobRef,
    draft: Create,
    template: Mapping[str, Any],
    *,
    queue: str,
    priority_class: str,
    selector: Mapping[str, str],
    digest: str,
) -> Body:
    """The manifest of a Workload. ``selector``: node labels of the base's flavors, on which an extra has to land."""
    pods = pod_template(template)
    if draft.index and selector:
        pods["spec"]["nodeSelector"] = {**(pods["spec"].get("nodeSelector") or {}), **selector}
    pod_set: Body = {"name": POD_SET, "count": draft.count, "template": pods}
    if wanted := topology(template):
        pod_set["topologyRequest"] = wanted
    spec: Body = {"queueName": queue, "priority": draft.priority, "podSets": [pod_set]}
    if priority_class and not draft.index:
        spec["priorityClassRef"] = {"group": GROUP, "kind": "WorkloadPriorityClass", "name": priority_class}
    metadata = owned(job, draft.name)
    metadata["annotations"] = {INDEX: str(draft.index), SHAPE: digest}
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": metadata, "spec": spec}


def placed(pod: Mapping[str, Any], placement: PodPlacement) -> Body:
    """The spec of a pod with the node selector and the tolerations of its place."""
    spec = dict(pod)
    if placement.selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **dict(placement.selector)}
    if placement.tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or []), *map(dict, placement.tolerations)]
    return spec


def charged_to(manifest: Body, charge: Charge) -> Body:
    """The pod of a queued job, with the place that its Workload's admission gives it. It never queues by itself."""
    placement, metadata = charge.placement, manifest["metadata"]
    labels = {k: v for k, v in metadata["labels"].items() if k != QUEUE_LABEL}
    labels |= dict(placement.labels)
    notes = {**metadata.get("annotations", {}), **dict(placement.annotations), WORKLOAD_NOTE: charge.workload}
    spec = placed(manifest["spec"], placement)
    if charge.topology:
        labels[f"{GROUP}/podset"] = POD_SET
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), {"name": TOPOLOGY_GATE}]
    return {**manifest, "metadata": {**metadata, "labels": labels, "annotations": notes}, "spec": spec}
