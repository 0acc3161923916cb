"""Raw nodes and pod templates → the allocator's values. The only parser of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastrain.api.accelerators import extended
from elastrain.api.job import trainer_container
from elastrain_operator.allocation.match import CORDON
from elastrain_operator.allocation.model import Kind, Place, Requirement, Taint, Toleration
from elastrain_operator.observe.resources import amounts, demand
from elastrain_operator.pod import defaults

Raw = Mapping[str, Any]

GOING_TAINTS = frozenset(
    {
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/rebalance-recommendation",
        "cloud.google.com/impending-node-termination",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.kubernetes.io/out-of-service",
        "ToBeDeletedByClusterAutoscaler",
    }
)
"""Taints that announce the end of a node: they count even if a template tolerates everything."""
DEFAULT_SCHEDULER = "default-scheduler"
GOING_CONDITIONS = frozenset({"PreemptScheduled", "TerminateScheduled", "RedeployScheduled"})
"""Conditions that announce it if True (Azure's node problem detector)."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node without its pods."""

    name: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    ready: bool
    cordoned: bool
    going: bool


def node(body: Raw) -> NodeFacts:
    """A node. Without a readiness condition it counts as not ready."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    taints = tuple(
        Taint(str(t.get("key", "")), str(t.get("value") or ""), str(t.get("effect", "")))
        for t in spec.get("taints") or []
        if t.get("key") != CORDON  # repeats spec.unschedulable
    )
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or []}
    announced = any(t.key in GOING_TAINTS for t in taints) or any(conditions.get(c) == "True" for c in GOING_CONDITIONS)
    return NodeFacts(
        name=meta["name"],
        allocatable=amounts(status.get("allocatable")),
        labels=meta.get("labels") or {},
        taints=taints,
        ready=conditions.get("Ready") == "True",
        cordoned=bool(spec.get("unschedulable")),
        going=announced or "deletionTimestamp" in meta,
    )


def kind(template: Raw, avoid: Iterable[str] = ()) -> Kind:
    """What a worker of this pod template requires of a node, including the default tolerations that it gets.

    ``avoid``: nodes (names) that new workers avoid. Raises ``AttributeError``, ``KeyError``, ``TypeError`` or
    ``ValueError`` if the template is not a valid pod.
    """
    spec = dict(template.get("spec") or {})
    defaults.tolerate(spec, extended(trainer_container(dict(template))))
    return Kind(demand(spec), _place(spec, tuple(sorted(avoid))))


def unknown(template: Raw) -> tuple[str, ...]:
    """Constraints of a pod template that the scheduler knows and the allocator does not, for messages."""
    spec = template.get("spec") or {}
    if not isinstance(spec, Mapping):
        return ()
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    volumes, containers = spec.get("volumes") or [], spec.get("containers") or []
    spreads = spec.get("topologySpreadConstraints") or []
    found = {
        "resource claims": bool(spec.get("resourceClaims")),
        "volumes' nodes": any("persistentVolumeClaim" in v or "ephemeral" in v for v in volumes),
        "pod affinity": any((affinity.get(k) or {}).get(required) for k in ("podAffinity", "podAntiAffinity")),
        "topology spread": any(s.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for s in spreads),
        "host ports": any(p.get("hostPort") for c in containers for p in c.get("ports") or []),
        "scheduling gates": bool(spec.get("schedulingGates")),
        "scheduler": (spec.get("schedulerName") or DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER,
    }
    return tuple(name for name, is_set in found.items() if is_set)


def _place(spec: Raw, avoid: tuple[str, ...]) -> Place:
    node_affinity = ((spec.get("affinity") or {}).get("nodeAffinity")) or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return Place(
        selector=tuple(sorted((str(k), str(v)) for k, v in (spec.get("nodeSelector") or {}).items())),
        terms=tuple(_term(t) for t in required.get("nodeSelectorTerms") or []),
        tolerations=tuple(
            Toleration(
                str(t.get("key") or ""), str(t.get("operator") or "Equal"), str(t.get("value") or ""),
                str(t.get("effect") or ""), t.get("tolerationSeconds") is not None,
            )
            for t in spec.get("tolerations") or []
        ),
        avoid=avoid,
    )  # fmt: skip


def _term(raw: Raw) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(str(e.get("key", "")), str(e.get("operator", "")), tuple(str(v) for v in e.get("values") or ()))
        for e in raw.get("matchExpressions") or []
    )
