"""Whether a pod may be bound to a node, apart from resources: the rules of kube-scheduler's NodeAffinity and
TaintToleration plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elastrain_operator.allocation.snapshot import Node, NodeRules, Requirement, Taint, Toleration

HARD = frozenset({"NoSchedule", "NoExecute"})
"""Effects of a taint that keep pods away."""
UNWELL = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints that repeat the node's readiness."""
CORDON = "node.kubernetes.io/unschedulable"
STATES = frozenset(
    {
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/memory-pressure",
        "node.kubernetes.io/pid-pressure",
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
    }
)
"""``NoSchedule`` taints of Kubernetes itself that report a state of the node: they never move a worker. Under pressure
the kubelet chooses the pods that it evicts."""


def takes(node: Node, place: NodeRules) -> bool:
    """Whether a new worker may be bound to ``node`` now."""
    if node.cordoned or node.going or node.sick or not node.ready or node.name in place.avoid:
        return False
    return selects(place, node) and not any(t.effect in HARD for t in untolerated(node.taints, place))


def lets_go(node: Node, place: NodeRules) -> bool:
    """Whether workers on ``node`` should move early, because they end there anyway, or because the node has been closed
    for a while.

    At once: its removal is announced, or a ``NoExecute`` taint ends the pods. After a dwell: a cordon, a condition of a
    fault, or a ``NoSchedule`` taint that they do not tolerate. Never: a state that passes, or ends in a loss.
    """
    lasts = (node.cordoned and not node.cordon_passing) or (node.sick and not node.sick_passing)
    return node.going or lasts or any(_moves(t, place) for t in node.taints)


def why_left(node: Node, place: NodeRules) -> str:
    """Why workers should leave ``node``, for people; empty: they need not."""
    if not lets_go(node, place):
        return ""
    taints = [t.key for t in node.taints if _moves(t, place) and t.key not in node.closed_by]
    return ", ".join([*([node.closed_by] if node.closed_by else []), *(f"taint {key}" for key in taints)]) or "it ends"


def _moves(taint: Taint, place: NodeRules) -> bool:
    if taint.key in UNWELL or taint.key in STATES or taint.passing or taint.effect not in HARD:
        return False
    return not any(_tolerates(x, taint) for x in place.tolerations if not (x.bounded and taint.effect == "NoExecute"))


def selects(place: NodeRules, node: Node) -> bool:
    """Whether ``nodeSelector`` and required node affinity hold."""
    if any(node.labels.get(key) != value for key, value in place.selector):
        return False
    return not place.terms or any(term and all(_is_met(r, node) for r in term) for term in place.terms)


def _is_met(requirement: Requirement, node: Node) -> bool:
    return _holds(requirement, {"metadata.name": node.name} if requirement.of_field else node.labels)


def untolerated(taints: Iterable[Taint], place: NodeRules) -> list[Taint]:
    """Taints that no toleration matches."""
    return [t for t in taints if not any(_tolerates(x, t) for x in place.tolerations)]


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    key, values, value = requirement.key, requirement.values, labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt":
            return _compares(requirement.operator, value, values)
    return False


def _compares(operator: str, value: str | None, values: tuple[str, ...]) -> bool:
    """Gt and Lt. Labels and bounds that are not integers never match."""
    try:
        have, bound = int(value or ""), int(values[0] if values else "")
    except ValueError:
        return False
    return have > bound if operator == "Gt" else have < bound
