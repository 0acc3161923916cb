"""Nodes that new workers avoid for a while: those whose check or device failed, or that lost several workers.

Exclusions expire, and only the newest few are kept. A node may be innocent: a script that the kernel kills for its
memory loses workers on any node. A wrong exclusion then costs no more than a delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain.api import names
from elastrain_operator.facts import Cause, ConditionUpdate, Loss
from elastrain_resource.job import Condition, ConditionType, ExcludedNode

WINDOW = timedelta(minutes=30)
"""Losses further apart are unrelated."""
LOSSES = 3
"""Workers lost on one node within the window after which it is excluded."""
MOST_NODES = 16
MOST_LOSSES = 64
"""Most entries that are kept; the oldest are removed first."""

_AT_ONCE = frozenset({"PreflightFailed", names.DEVICE_FAILED, "ContainerNotCreated"})
"""Reasons of losses of which one excludes the node: the pre-flight check failed, a device did while it trained, or no
container was created for minutes."""
_NOT_THE_NODE = frozenset({"OOMKilled", "Evicted", "Deleted", "InitContainerFailed"})
"""Losses to infrastructure that are unrelated to the node's health (programs of their own fail), or that Kubernetes
handles."""


@dataclass(frozen=True, slots=True)
class NodeExclusions:
    """Excluded nodes, as in the status, and recent losses by node, in memory: the next operator counts anew."""

    excluded: tuple[ExcludedNode, ...] = ()
    losses: tuple[tuple[str, datetime], ...] = ()
    """Node, and when the loss was counted."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that new workers avoid."""
        return tuple(sorted(e.node for e in self.excluded))

    @property
    def until(self) -> datetime | None:
        """When the first exclusion ends."""
        return min((datetime.fromisoformat(e.until) for e in self.excluded), default=None)


def update(
    excluded: Sequence[ExcludedNode],
    losses: Iterable[tuple[str, datetime]],
    fresh: Iterable[Loss],
    cooldown: int,
    now: datetime,
) -> NodeExclusions:
    """The exclusions with ``fresh`` losses added and expired ones removed. ``cooldown``: seconds; 0: no exclusions."""
    if cooldown == 0:
        return NodeExclusions()
    recent = [(node, at) for node, at in losses if now - at < WINDOW]
    in_force = {e.node: e for e in excluded if now < datetime.fromisoformat(e.until)}
    for loss in fresh:
        node = loss.pod.node
        if not node or loss.cause is not Cause.INFRASTRUCTURE or loss.reason in _NOT_THE_NODE:
            continue
        recent.append((node, now))
        times = sum(lost == node for lost, _ in recent)
        if loss.reason not in _AT_ONCE and times < LOSSES:
            continue
        until = (now + timedelta(seconds=cooldown)).isoformat()
        in_force.pop(node, None)  # the newest come last
        in_force[node] = ExcludedNode(node=node, until=until, message=_message(loss, times))
        recent = [x for x in recent if x[0] != node]  # the count restarts after its exclusion
    return NodeExclusions(tuple(in_force.values())[-MOST_NODES:], tuple(recent)[-MOST_LOSSES:])


def claim(exclusions: NodeExclusions, before: Iterable[Condition]) -> tuple[ConditionUpdate, ...]:
    """The condition NodesExcluded; none for a job that has never excluded a node."""
    kind = ConditionType.NODES_EXCLUDED
    if exclusions.excluded:
        text = "; ".join(f"{e.node} until {e.until}: {e.message}" for e in exclusions.excluded)
        return (ConditionUpdate(kind, "True", "Excluded", f"new workers avoid {text}"),)
    if any(c.type == kind for c in before):
        return (ConditionUpdate(kind, "False", "NoneExcluded", "new workers may run on every node"),)
    return ()


def _message(loss: Loss, times: int) -> str:
    if loss.reason in _AT_ONCE:
        return loss.message
    return f"{times} workers lost there within {int(WINDOW.total_seconds() // 60)} min, the last: {loss.message}"
