"""Which workers leave when a job has too many: the one rule of the operator and of local mode. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the rule asks about a worker. Local mode knows the first four fields; the rest keep their defaults there."""

    name: str
    ordinal: int
    trains: bool = False
    """It is in the generation in force."""
    ready: bool = True
    """It is ready to train."""
    released: bool = False
    """The allocator named it, because another job needs its node."""
    unstable: bool = False
    """Its node drains, takes no pods or is not ready, or Kubernetes is about to evict it."""
    sickness: int = 0
    """2: a rank of it hangs; 1: it slows the others down; 0: neither."""
    started: bool = True
    """Its container runs."""
    neighbours: int = 0
    """Workers of the job on its node, itself included; 0: no node yet."""


def leave_order(workers: Sequence[WorkerFacts]) -> tuple[WorkerFacts, ...]:
    """``workers``, those that leave first at the front.

    Workers that the allocator selected leave first; then unstable ones; then sick ones; then those that do not train
    yet; then those that free a node (fewest neighbours); then the newest.
    """

    def key(w: WorkerFacts) -> tuple[bool, bool, int, bool, bool, bool, int, int]:
        return (
            not w.released, not w.unstable, -w.sickness, w.started, w.ready, w.trains, w.neighbours, -w.ordinal,
        )  # fmt: skip

    return tuple(sorted(workers, key=key))


def surplus(ranked: Sequence[WorkerFacts], desired: int, spares: int = 0) -> tuple[WorkerFacts, ...]:
    """The workers that are too many, from ``ranked`` in the order of :func:`leave_order`.

    A worker that trains never becomes a spare, because the members keep the generation they have: of those as many
    leave as exceed ``desired``. Of all others as many leave as exceed ``desired`` and ``spares`` together.
    """
    training = [w for w in ranked if w.trains] if spares else []
    first = training[: max(len(training) - desired, 0)]
    rest = [w for w in ranked if w not in first]
    return (*first, *rest[: max(len(rest) - desired - spares, 0)])
