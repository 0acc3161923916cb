"""Warm spares: the desired number of workers beyond ``desired``, and which workers stand by. Pure.

A spare is an ordinary pod. It starts like any worker, imports, builds the model and reports that it is ready; the
members admit no more than ``target.desired``, so it waits. When a worker is lost or the desired number grows, the
members admit it without the operator, which only creates the next spare.
"""

from __future__ import annotations

from elastrain.api.job import GenerationStatus, JobSpec, SparesStatus
from elastrain.api.records import Phase
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination


def wanted(spec: JobSpec, desired: int, workers: int, generation: GenerationStatus | None, share: Share | None) -> int:
    """Desired spares beside ``desired`` workers. ``workers``: pods that count as workers; ``generation``: in force.

    0 before the job trains: the first workers must neither wait for spares nor share accelerators with them. If the
    operator shares the cluster out, ``share`` limits the spares; if it does not know the cluster, existing ones stay.
    """
    if not spec.warm_spares or not desired or generation is None or not generation.size:
        return 0
    if share is None:
        return spec.warm_spares
    if share.size is None:
        return min(spec.warm_spares, max(workers - desired, 0))
    return min(spec.warm_spares, share.spares)


def standing_by(seen: Coordination) -> frozenset[str]:
    """Warm spares (pod names): ready workers outside the newest generation, if that has the desired size."""
    newest, target = seen.generation, seen.target
    if newest is None or target is None or not target.desired or len(newest.members) < target.desired:
        return frozenset()
    placed = {m.worker for m in newest.members}
    return frozenset(m.worker for m in seen.members if m.phase is Phase.READY and m.worker not in placed)


def status(
    spec: JobSpec, previous: SparesStatus | None, desired: int, standing: frozenset[str] | None
) -> SparesStatus | None:
    """The status of ``desired`` spares; None if the spec asks for none. ``standing``: None: unknown."""
    if not spec.warm_spares:
        return None
    ready = (previous.ready if previous else 0) if standing is None else len(standing) // spec.group_size
    return SparesStatus(ready=min(ready, desired), desired=desired)
