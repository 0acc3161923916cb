"""Raw nodes → the allocator's values, and how long each has been closed to new pods. Pure.

A short cordon or a passing taint moves no worker. Times are the operator's own first observations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
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


DWELL = timedelta(seconds=120)
"""Least duration of a cordon or a ``NoSchedule`` taint before workers move. Kubernetes leaves running pods alone with
either; an agent that restarts, or a reboot that is called off, takes seconds to a minute."""

Cause = tuple[str, str, str]
"""Key, value and effect of a taint; a cordon is one, too."""
_CORDONED: Cause = (CORDON, "", "NoSchedule")
Closed = Mapping[Cause, datetime]
"""When each cause was first observed on a node."""


def update(before: Closed, facts: NodeFacts | None, now: datetime) -> dict[Cause, datetime]:
    """The causes that close a node now. A cause that was absent in between begins anew."""
    if facts is None:
        return {}
    causes = [(t.key, t.value, t.effect) for t in facts.taints if t.effect == "NoSchedule"]
    return {cause: before.get(cause, now) for cause in [*causes, *([_CORDONED] if facts.cordoned else [])]}


def cordon_lasts(closed: Closed, now: datetime) -> bool:
    """Whether the node's cordon has lasted long enough to move workers."""
    return _lasts(closed.get(_CORDONED), now)


def taints_at(facts: NodeFacts, closed: Closed, now: datetime) -> tuple[Taint, ...]:
    """The node's taints; those that have not lasted long enough are marked as passing."""
    return tuple(
        t if t.effect != "NoSchedule" or _lasts(closed.get((t.key, t.value, t.effect)), now) else t.as_passing()
        for t in facts.taints
    )


def next_change(closed: Iterable[Closed], now: datetime) -> float | None:
    """Seconds until the next cause has lasted long enough; None: no cause is new."""
    ends = [since + DWELL for causes in closed for since in causes.values() if since + DWELL > now]
    return (min(ends) - now).total_seconds() if ends else None


def _lasts(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since >= DWELL
