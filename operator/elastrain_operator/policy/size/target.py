"""The target: the operator's instruction to the members, in etcd."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.api.job import JobSpec
from elastrain.api.records import Target


def target(
    spec: JobSpec, desired: int, previous: Target | None, leaving: Iterable[str], *, stop: bool, above: int = 0
) -> Target:
    """The target of ``desired`` replicas, in workers; ``stop``: the job has failed, all workers save and leave.

    The reason changes only with the size: removing a gone worker from ``leaving`` keeps it.
    """
    size = spec.group_size
    return Target(
        min=spec.min_replicas * size,
        max=spec.max_replicas * size,
        desired=desired * size,
        leaving=tuple(sorted(leaving)),
        reason=_reason(spec, previous, desired * size, stop),
        above=above,
    )


def _reason(spec: JobSpec, previous: Target | None, desired: int, stop: bool) -> str:
    if stop:
        return "Stop"
    if spec.suspend:
        return "Suspend"
    if previous is None:
        return "Start"
    if desired == previous.desired:
        return previous.reason
    if previous.desired == 0:
        return "Start"
    return "Grow" if desired > previous.desired else "Drain"
