"""Which workers leave if there are too many or a better node has room. The rule is in :mod:`elastrain.sizing`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from elastrain.api.records import Health
from elastrain.sizing import WorkerFacts, leave_order, surplus
from elastrain_operator.allocation.model import Share
from elastrain_operator.model import Coordination, Pod

SICK = {Health.STUCK: 2, Health.SLOW: 1}
"""Members that delay all others, by their own records: a larger value leaves earlier. Waiting counts as 0."""


def order(workers: Sequence[Pod], members: Coordination | None, share: Share | None) -> tuple[Pod, ...]:
    """``workers`` in the order in which they leave. ``members``: None if membership is unknown."""
    pods = {p.name: p for p in workers}
    return tuple(pods[w.name] for w in leave_order(_facts(workers, members, share)))


def choose(
    workers: Sequence[Pod],
    desired: int,
    minimum: int,
    members: Coordination | None,
    share: Share | None,
    *,
    spares: int = 0,
) -> tuple[Pod, ...]:
    """The workers that are asked to leave: the surplus, and those for which a better node has room.

    The latter are replaced, and only while ``minimum`` workers, and ``minimum`` training ones, remain. ``spares``:
    workers beyond ``desired`` that may stand by.
    """
    ranked = leave_order(_facts(workers, members, share))
    chosen = list(surplus(ranked, desired, spares))
    if share and share.replace and desired:
        train_on = sum(w.trains for w in ranked if w not in chosen) - minimum
        for worker in ranked:
            if worker.name not in share.replace or worker in chosen:
                continue
            if len(ranked) - len(chosen) <= minimum or (worker.trains and train_on <= 0):
                continue
            train_on -= worker.trains
            chosen.append(worker)
    pods = {p.name: p for p in workers}
    return tuple(pods[w.name] for w in chosen)


def _facts(workers: Sequence[Pod], members: Coordination | None, share: Share | None) -> list[WorkerFacts]:
    sickness = {m.worker: SICK[Health(m.health)] for m in members.members if m.health in SICK} if members else {}
    training = {m.worker for m in members.generation.members} if members and members.generation else frozenset()
    on_node = Counter(p.node for p in workers)
    release = share.release if share else frozenset()
    shaky = share.shaky if share else frozenset()
    return [
        WorkerFacts(
            name=p.name,
            ordinal=p.ordinal,
            trains=p.name in training,
            ready=p.ready,
            released=p.name in release,
            unstable=bool(p.name in shaky or p.disruption or p.went_unready),
            sickness=sickness.get(p.name, 0),
            started=p.started,
            neighbours=on_node[p.node] if p.node else 0,
        )
        for p in workers
    ]
