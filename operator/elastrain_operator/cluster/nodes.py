"""Raw nodes → the allocator's values, and how long each has been closed to new pods. Pure.

A short cordon or a passing taint moves no worker. Times are the operator's own first observations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from elastrain_operator.allocation.match import CORDON
from elastrain_operator.allocation.resources import amounts
from elastrain_operator.allocation.snapshot import Taint

Raw = Mapping[str, Any]
MOST_CAUSES = 3
"""Conditions that a message names of one node."""

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
UPGRADE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
UPGRADE_STATES = frozenset({"cordon-required", "wait-for-jobs-required", "pod-deletion-required", "drain-required"})
"""States of NVIDIA's GPU operator in which the pods of a node's GPUs end soon, some by deletion without an eviction."""
SICK_CONDITIONS = frozenset(
    {
        # node-problem-detector: permanent problems of the kernel
        "KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown",
        # NVSentinel: fatal faults of devices, and the cloud's maintenance
        "GpuMemWatch", "GpuThermalWatch", "GpuPcieWatch", "GpuPowerWatch", "GpuInforomWatch", "GpuSmWatch",
        "GpuNvlinkWatch", "GpuMcuWatch", "GpuPmuWatch", "GpuDriverWatch", "SysLogsXIDError", "SysLogsSXIDError",
        "SysLogsGPUFallenOff", "NVSwitchFatalError", "NVSwitchDown", "CSPMaintenance",
    }
)  # fmt: skip
"""Conditions that, if True, say that training on the node will end: no new worker goes there, and workers move after
the dwell. Not those of a daemon that restarts (FrequentKubeletRestart, DCGMError): a worker may outlive it."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node without its pods."""

    name: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    ready: bool
    cordoned: bool
    going: str
    """What announces its removal; empty: nothing does."""
    sick: tuple[str, ...] = ()
    """Its true conditions of ``SICK_CONDITIONS``."""


def node(body: Raw) -> NodeFacts:
    """A node. Without a readiness condition it counts as not ready."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    taints = tuple(
        Taint(str(t.get("key", "")), str(t.get("value") or ""), str(t.get("effect", "")))
        for t in spec.get("taints") or []
        if t.get("key") != CORDON  # repeats spec.unschedulable
    )
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or []}
    true = sorted(str(c) for c, truth in conditions.items() if truth == "True")
    return NodeFacts(
        name=meta["name"],
        allocatable=amounts(status.get("allocatable")),
        labels=meta.get("labels") or {},
        taints=taints,
        ready=conditions.get("Ready") == "True",
        cordoned=bool(spec.get("unschedulable")),
        going=_announced(meta, taints, true),
        sick=tuple(c for c in true if c in SICK_CONDITIONS),
    )


def _announced(meta: Raw, taints: Iterable[Taint], true: Iterable[str]) -> str:
    if "deletionTimestamp" in meta:
        return "it is being deleted"
    state = (meta.get("labels") or {}).get(UPGRADE_LABEL)
    words = [
        *(f"taint {t.key}" for t in taints if t.key in GOING_TAINTS),
        *(f"condition {c}" for c in true if c in GOING_CONDITIONS),
        *([f"{UPGRADE_LABEL}={state}"] if state in UPGRADE_STATES else []),
    ]
    return words[0] if words else ""


def believed(facts: Sequence[NodeFacts]) -> bool:
    """Whether reports of sick nodes count: at most a third of the nodes, or one, make them. Else a monitor is taken to
    be at fault, as the node controller takes the loss of most nodes for its own."""
    return sum(bool(n.sick) for n in facts) <= max(len(facts) // 3, 1)


def why_closed(facts: NodeFacts) -> str:
    """What closes a node to all workers, for people; empty: nothing does. Taints depend on what a worker tolerates."""
    conditions = [f"condition {c}" for c in facts.sick[:MOST_CAUSES]]
    return ", ".join([*([facts.going] if facts.going else []), *conditions, *(["a cordon"] if facts.cordoned else [])])


DWELL = timedelta(seconds=120)
"""Least duration of a cordon, a sick condition or a ``NoSchedule`` taint before workers move. Kubernetes leaves running
pods alone with all three; an agent that restarts, or a reboot that is called off, takes seconds to a minute."""

Cause = tuple[str, str, str]
"""Key, value and effect of a taint; a cordon is one, too, and so is a condition."""
_CORDONED: Cause = (CORDON, "", "NoSchedule")
Closed = Mapping[Cause, datetime]
"""When each cause was first observed on a node."""


def update(before: Closed, facts: NodeFacts | None, now: datetime) -> dict[Cause, datetime]:
    """The causes that close a node now. A cause that was absent in between begins anew."""
    if facts is None:
        return {}
    causes = [(t.key, t.value, t.effect) for t in facts.taints if t.effect == "NoSchedule"]
    causes += [_condition(c) for c in facts.sick]
    return {cause: before.get(cause, now) for cause in [*causes, *([_CORDONED] if facts.cordoned else [])]}


def sickness_lasts(facts: NodeFacts, closed: Closed, now: datetime) -> bool:
    """Whether one of the node's conditions has lasted long enough to move workers."""
    return any(_lasts(closed.get(_condition(c)), now) for c in facts.sick)


def _condition(kind: str) -> Cause:
    return (kind, "True", "Condition")


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
