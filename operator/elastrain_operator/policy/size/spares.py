"""Warm spares: how many workers more than wanted there should be, and who of them stands by. Pure.

A spare is no other kind of pod. It starts like any worker, imports, builds the model and says that it is ready; beyond
``target.desired`` the members let nobody in, so that it waits. When a worker is lost, or one more is wanted, the
members themselves let it in: the operator is not on that way, it only sees to it that another one is made.
"""

from __future__ import annotations

from elastrain.api.job import GenerationStatus, JobSpec, SparesStatus
from elastrain.api.records import Phase
from elastrain_operator.allocation.model import Share
from elastrain_operator.model import Coordination


def wanted(spec: JobSpec, desired: int, workers: int, generation: GenerationStatus | None, share: Share | None) -> int:
    """Spares wanted now, beside ``desired`` workers. ``workers``: pods that count as workers; ``generation``: in force.

    None before the job trains: those who start together must neither wait for spares nor share accelerators with them.
    Where the operator shares the cluster out, as many as ``share`` leaves room for; where it does not know the cluster,
    as many as there are.
    """
    if not spec.warm_spares or not desired or generation is None or not generation.size:
        return 0
    if share is None:
        return spec.warm_spares
    if share.size is None:
        return min(spec.warm_spares, max(workers - desired, 0))
    return min(spec.warm_spares, share.spares)


def standing_by(seen: Coordination) -> frozenset[str]:
    """Workers (pod names) that could train and that nobody needs: in no generation, while the newest one is as large as
    is wanted."""
    newest, target = seen.generation, seen.target
    if newest is None or target is None or not target.desired or len(newest.members) < target.desired:
        return frozenset()
    placed = {m.worker for m in newest.members}
    return frozenset(m.worker for m in seen.members if m.phase is Phase.READY and m.worker not in placed)


def status(
    spec: JobSpec, previous: SparesStatus | None, desired: int, standing: frozenset[str] | None
) -> SparesStatus | None:
    """What the status says of ``desired`` spares; absent where none are asked for. ``standing``: None: not known."""
    if not spec.warm_spares:
        return None
    ready = (previous.ready if previous else 0) if standing is None else len(standing)
    return SparesStatus(ready=min(ready, desired), desired=desired)
