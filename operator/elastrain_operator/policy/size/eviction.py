"""Which workers an autoscaler may evict to remove their node: all but those that hold the last copy of the state. Pure.

Cluster autoscaler removes no node with pods of a custom controller unless their annotation permits it; Karpenter
removes any node unless an annotation forbids it. The disruption budget covers drains one after the other; the
annotations keep an autoscaler from starting a drain that the budget would then block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from elastrain_operator.facts import DisruptionBudget, Mark, Pod
from elastrain_operator.pod.defaults import decides_evictions
from elastrain_operator.policy.size.holders import last


def marks(template: Mapping[str, Any], pods: Collection[Pod], budget: DisruptionBudget | None) -> tuple[Mark, ...]:
    """The workers whose annotations have to change. ``budget``: None: the holders of the state are unknown, so that all
    annotations stay; without ordinals: no worker has to be kept.

    If one node has all holders, one of them keeps it: a node with one such pod is not removed.
    """
    if budget is None or decides_evictions(template):
        return ()
    live = sorted((p for p in pods if not (p.over or p.ending or p.terminating)), key=lambda p: p.ordinal)
    held = [p.name for p in live if p.ordinal in budget.ordinals]
    if 1 < budget.least == len(held):  # of the last group, all
        keepers = held
    else:
        holders = last(held, live)
        keepers = [p.name for p in live if p.name in holders][:1]
    return tuple(Mark(p.name, p.uid, p.name in keepers) for p in live if p.kept is not (p.name in keepers))
