"""Which workers hold the training state, and which of them hold its last copy. Pure; the one rule for disruption
budgets and for the annotations that autoscalers read.

All ranks of a generation hold the same state. A worker outside of the generation that trains holds none, or an older
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastrain.api.records import Phase, Progress
from elastrain_operator.facts import Coordination, Pod


def holders(pods: Iterable[Pod], seen: Coordination | None) -> frozenset[str] | None:
    """Workers (pod names) whose memory holds the newest training state; None: unknown, so nothing may follow from it.

    Empty: the job has committed no step yet, or its state is lost. ``seen``: None also if etcd has lost its data. A
    joiner counts once its generation has committed a step: until then it may still receive the state.
    """
    if seen is None:
        return None
    if seen.progress is None:
        return None if any(m.generation for m in seen.members) else frozenset()
    number = _trained(seen.progress)
    if number is None:
        return frozenset()
    newest = seen.generation
    placed = newest.members if newest and newest.number == number else seen.earlier(number)
    if not placed:
        return None
    # By id: a worker of which a rank was restarted registers as another member. Its other ranks may hold the state.
    ids = {m.id for m in placed} | {m.id for m in seen.members if m.holds}
    live = {p.name for p in pods if not p.ending and not p.over}
    return frozenset(m.worker for m in seen.members if m.id in ids and m.worker in live)


def staying(pods: Collection[Pod], seen: Coordination | None) -> frozenset[str] | None:
    """The holders that neither leave by themselves nor were asked to. None: unknown."""
    held = holders(pods, seen)
    if held is None or seen is None:
        return None
    leaving = {m.worker for m in seen.members if m.phase is Phase.LEAVING} | {p.name for p in pods if p.terminating}
    return held - leaving - set(seen.target.leaving if seen.target else ())


def last(holding: Collection[str], pods: Iterable[Pod]) -> frozenset[str]:
    """Those of the ``holding`` workers that hold the last copy as far as one node's drain is concerned: all of them if
    they share one node, which may be the only worker; else none. Workers without a node hold nothing."""
    nodes = {p.node for p in pods if p.name in holding}
    return frozenset(holding) if len(nodes) == 1 else frozenset()


def _trained(progress: Progress) -> int | None:
    """Number of the newest generation that has committed a step; None: none has."""
    if progress.rescales:  # the first commit of a generation adds its rescale
        return progress.rescales[-1].generation
    return progress.generation if progress.step else None
