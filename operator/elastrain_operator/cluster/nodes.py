"""Raw nodes and pod templates → the allocator's values. The only parser of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastrain_operator.allocation.match import CORDON
from elastrain_operator.allocation.resources import amounts
from elastrain_operator.allocation.snapshot import Taint

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
