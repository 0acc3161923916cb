"""Which workers hold the training state, and which of them hold its last copy. Pure; the one rule for disruption
budgets and for the annotations that autoscalers read.

All ranks of a generation hold the same state. A worker outside of the generation in force holds none, or an older one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastrain.api.records import Member
from elastrain_operator.model import Coordination, Pod


def holders(pods: Iterable[Pod], seen: Coordination | None) -> frozenset[str] | None:
    """Workers (pod names) whose memory holds the newest training state; None: unknown, since etcd is.

    Empty: the job has not trained yet, or its state is lost. ``seen``: None also if etcd has lost its data. A joiner
    counts from the generation's first report on, though a large state may still be on its way to it.
    """
    if seen is None:
        return None
    live = {p.name for p in pods if not p.ending and not p.over}
    members = [m for m in seen.members if m.worker in live]
    trained = _of_generation(members, seen) or [m for m in members if m.generation > 0]
    return frozenset(m.worker for m in trained)


def last(holding: Collection[str], pods: Iterable[Pod]) -> frozenset[str]:
    """Those of the ``holding`` workers that hold the last copy as far as one node's drain is concerned: all of them if
    they share one node, which may be the only worker; else none. Workers without a node hold nothing."""
    nodes = {p.node for p in pods if p.name in holding}
    return frozenset(holding) if len(nodes) == 1 else frozenset()


def _of_generation(members: Iterable[Member], seen: Coordination) -> list[Member]:
    """The live members of the generation in force."""
    newest = seen.generation
    known = [m.generation for m in members] + [seen.progress.generation if seen.progress else 0]
    number = max(known, default=0)
    if newest is None or number == 0:
        return []
    placed = newest.members if number >= newest.number else seen.earlier(number)
    ids = {m.id for m in placed}
    return [m for m in members if m.id in ids or m.generation == number]
