"""Which workers leave if a job has too many: the one rule of the operator and of local mode. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """The rule's input for one worker. Local mode sets the first four fields; the others keep their defaults there."""

    name: str
    ordinal: int
    trains: bool = False
    """It is in the generation in force."""
    ready: bool = True
    """It is ready to train."""
    released: bool = False
    """The allocator selected it, because another job needs its node."""
    unstable: bool = False
    """Its node drains, accepts no pods or is not ready, or Kubernetes is about to evict it."""
    sickness: int = 0
    """2: one of its ranks hangs; 1: it delays the others; 0: neither."""
    started: bool = True
    """Its container runs."""
    neighbours: int = 0
    """Workers of the job on its node, itself included; 0: no node yet."""


def leave_order(workers: Sequence[WorkerFacts]) -> tuple[WorkerFacts, ...]:
    """``workers`` in the order in which they leave.

    Workers that the allocator selected leave first; then unstable ones; then sick ones; then those that do not train
    yet; then those that free a node (fewest neighbours); then the newest.
    """

    def key(w: WorkerFacts) -> tuple[bool, bool, int, bool, bool, bool, int, int]:
        return (
            not w.released, not w.unstable, -w.sickness, w.started, w.ready, w.trains, w.neighbours, -w.ordinal,
        )  # fmt: skip

    return tuple(sorted(workers, key=key))


def surplus(ranked: Sequence[WorkerFacts], desired: int, spares: int = 0) -> tuple[WorkerFacts, ...]:
    """The surplus of ``ranked``, which is in the order of :func:`leave_order`.

    A training worker never becomes a spare, because the members keep their generation: training workers beyond
    ``desired`` leave. Of the others, those beyond ``desired`` plus ``spares`` leave.
    """
    training = [w for w in ranked if w.trains] if spares else []
    first = training[: max(len(training) - desired, 0)]
    rest = [w for w in ranked if w not in first]
    return (*first, *rest[: max(len(rest) - desired - spares, 0)])
