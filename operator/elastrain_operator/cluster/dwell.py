"""How long nodes have been closed to new pods: a short cordon or a passing taint moves no worker. Pure.

Times are the operator's own first observations: no clock of another machine is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from elastrain_operator.allocation.match import CORDON
from elastrain_operator.allocation.snapshot import Taint
from elastrain_operator.cluster.nodes import NodeFacts

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


def taints(facts: NodeFacts, closed: Closed, now: datetime) -> tuple[Taint, ...]:
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
