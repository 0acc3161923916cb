"""Who is asked to leave when there are too many workers, or when their node goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from elastrain.api.records import Health
from elastrain_operator.allocation.model import Share
from elastrain_operator.model import Coordination, Pod

SICK = {Health.STUCK: 2, Health.SLOW: 1}
"""Members that hold the others up, by their own record; the worse, the sooner. Who waits for others is not sick."""


def order(workers: Sequence[Pod], members: Coordination | None, share: Share | None) -> tuple[Pod, ...]:
    """``workers``, who leaves first at the front. ``members``: None where membership is not known.

    First whom the allocator named, since others need room on that very node. Then workers on nodes that go, take no
    pods any more or are not ready, and those that Kubernetes is about to take away; then sick ones; then those that do
    not train yet; then those whose node they free (the fewest workers of the job on it); then the newest.
    """
    health = {m.worker: SICK.get(Health(m.health), 0) for m in members.members if m.health in SICK} if members else {}
    placed = {m.worker for m in members.generation.members} if members and members.generation else frozenset()
    beside = Counter(p.node for p in workers)
    release = share.release if share else frozenset()
    shaky = share.shaky if share else frozenset()

    def worth(pod: Pod) -> tuple[bool, bool, int, bool, bool, bool, int, int]:
        return (
            pod.name not in release,
            not (pod.name in shaky or pod.disruption or pod.went_unready),
            -health.get(pod.name, 0),
            pod.started,
            pod.ready,
            pod.name in placed,
            beside[pod.node] if pod.node else 0,
            -pod.ordinal,
        )

    return tuple(sorted(workers, key=worth))


def choose(
    workers: Sequence[Pod],
    desired: int,
    minimum: int,
    members: Coordination | None,
    share: Share | None,
    *,
    spares: int = 0,
) -> tuple[Pod, ...]:
    """The workers to be asked to leave: those that are too many, and those for whom there is room on a better node.

    Of the latter only as many as leave at least ``minimum``, and at least so many that train: they are replaced, not
    given up. ``spares``: workers beyond ``desired`` that may stand by.
    """
    ranked = order(workers, members, share)
    surplus = _surplus(ranked, desired, spares, members)
    if not share or not share.replace or desired == 0:
        return surplus
    chosen = list(surplus)
    spare = sum(_trains(p, members) for p in workers if p not in surplus) - minimum
    for pod in ranked:
        if pod.name not in share.replace or pod in surplus:
            continue
        trains = _trains(pod, members)
        if len(workers) - len(chosen) <= minimum or (trains and spare <= 0):
            continue
        spare -= trains
        chosen.append(pod)
    return tuple(chosen)


def _surplus(ranked: tuple[Pod, ...], desired: int, spares: int, members: Coordination | None) -> tuple[Pod, ...]:
    """Nobody who trains becomes a spare (the members keep whom they have): of those as many go as are too many, then
    whoever is beyond workers and spares together."""
    training = [p for p in ranked if _trains(p, members)] if spares else []
    first = tuple(training[: max(len(training) - desired, 0)])
    rest = tuple(p for p in ranked if p not in first)
    return (*first, *rest[: max(len(rest) - desired - spares, 0)])


def _trains(pod: Pod, members: Coordination | None) -> bool:
    return members is not None and members.trains(pod.name)
