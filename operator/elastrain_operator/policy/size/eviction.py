"""Which workers an autoscaler may evict to remove their node: all but those that hold the last copy of the state. Pure.

Cluster autoscaler removes no node with pods of a custom controller unless their annotation permits it; Karpenter
removes any node unless an annotation forbids it. The disruption budget covers drains one after the other; the
annotations keep an autoscaler from starting a drain that the budget would then block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from elastrain.api.names import DO_NOT_DISRUPT, SAFE_TO_EVICT
from elastrain_operator.model import DisruptionBudget, Mark, Pod
from elastrain_operator.policy.size.holders import last


def is_users(template: Mapping[str, Any]) -> bool:
    """Whether the job's template decides by annotations of its own."""
    own = (template.get("metadata") or {}).get("annotations") or {}
    return SAFE_TO_EVICT in own or DO_NOT_DISRUPT in own


def values(*, keep: bool) -> dict[str, str | None]:
    """Annotations of a worker; None: absent. ``keep``: its node must not be removed."""
    return {SAFE_TO_EVICT: "false" if keep else "true", DO_NOT_DISRUPT: "true" if keep else None}


def marks(template: Mapping[str, Any], pods: Collection[Pod], budget: DisruptionBudget | None) -> tuple[Mark, ...]:
    """The workers whose annotations have to change. ``budget``: None: the holders of the state are unknown, so that all
    annotations stay; without ordinals: no worker has to be kept.

    If one node has all holders, one of them keeps it: a node with one such pod is not removed.
    """
    if budget is None or is_users(template):
        return ()
    live = sorted((p for p in pods if not (p.over or p.ending or p.terminating)), key=lambda p: p.ordinal)
    held = [p.name for p in live if p.ordinal in budget.ordinals]
    if 1 < budget.least == len(held):  # of the last group, all
        keepers = held
    else:
        holders = last(held, live)
        keepers = [p.name for p in live if p.name in holders][:1]
    return tuple(Mark(p.name, p.uid, p.name in keepers) for p in live if p.kept is not (p.name in keepers))
