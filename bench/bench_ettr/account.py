"""From the log of a run's steps to its effective training time, and the lost time by cause. Pure.

Effective training time (ETTR; goodput): the productive part of the wall clock, as in Meta's "Revisiting Reliability in
Large-Scale Machine Learning Research Clusters" (HPCA 2025) and Google's ml-goodput-measurement. Productive are the
samples of the history that counts, each at the time that it takes in an undisturbed step of the same run at full size.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench_rescale.steplog import Line

REDONE = "redone"
CAPACITY = "capacity"
SCATTER = "scatter"
JOIN = "join"
CAUSE_WORDS = {
    JOIN: "a node or rank comes (back)",
    REDONE: "steps that the job was rolled back by",
    CAPACITY: "steps of a job without all of its nodes, beyond what they take at full size",
    SCATTER: "steps longer or shorter than the median by less than half of it, such as those that save",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """One committed step of the job."""

    at: float
    step: int
    world: int
    samples: int


@dataclass(frozen=True, slots=True)
class Account:
    """The wall clock of a run. ``productive`` and ``lost`` add up to ``wall``."""

    wall: float
    productive: float
    lost: dict[str, float]
    """By cause."""
    step: float
    """Median seconds of an undisturbed step at full size."""
    longest: float
    """Between two committed steps."""
    rolled_back: int
    """Committed steps that do not count."""
    missing: float
    """Seconds of steps without a rank, of all missing ranks together."""


def marks(lines: Iterable[Line], per_rank: int, constant: int | None) -> list[Mark]:
    """Rank 0's committed steps. ``constant``: samples of each step; None: ``per_rank`` times the ranks."""
    zero = sorted((x for x in lines if x.kind == "commit" and x.rank == 0), key=lambda x: x.at)
    return [Mark(x.at, x.step, x.world, constant or per_rank * x.world) for x in zero]


def marks_of_any(lines: Iterable[Line], per_rank: int) -> list[Mark]:
    """The same where no rank is the first: a step counts when any node has committed it, and is never rolled back."""
    first: dict[int, Line] = {}
    for line in sorted((x for x in lines if x.kind == "commit"), key=lambda x: x.at):
        first.setdefault(line.step, line)
    ordered = sorted(first.values(), key=lambda x: x.at)
    return [Mark(x.at, x.step, x.world, per_rank * x.world) for x in ordered]


def undisturbed(steps: Sequence[Mark], full: int) -> float:
    """Median seconds of a sample in a step of all ``full`` ranks after another one.

    Raises ``ValueError`` if there is none.
    """
    found = [
        (now.at - before.at) / now.samples
        for before, now in pairwise(steps)
        if before.world == now.world == full and now.step == before.step + 1
    ]
    if not found:
        raise ValueError(f"no step of {full} ranks follows another one: nothing says what an undisturbed one takes")
    return statistics.median(found)


def account(
    steps: Sequence[Mark], disturbances: Sequence[tuple[float, str]], window: tuple[float, float], full: int
) -> Account:
    """The split of ``window``. ``disturbances``: time and cause, in order; the first one within an interval takes the
    blame for what the interval is too long by, else the newest one before it.

    Raises ``ValueError`` if the window has no undisturbed step.
    """
    begin, end = window
    inside = [mark for mark in steps if begin <= mark.at <= end]
    second = undisturbed(inside, full)
    kept: list[tuple[int, float, float]] = []  # step, seconds of use, and beyond them for want of nodes
    lost = {REDONE: 0.0, CAPACITY: 0.0, SCATTER: 0.0}
    rolled_back, longest, missing = 0, 0.0, 0.0
    at, step = begin, max((mark.step for mark in steps if mark.at < begin), default=inside[0].step - 1)
    for mark in inside:
        while kept and kept[-1][0] >= mark.step:
            _, useful, capacity = kept.pop()
            lost[REDONE] += useful + capacity
            rolled_back += 1
        useful = max(1, mark.step - step) * mark.samples * second
        beyond = mark.at - at - useful
        capacity = min(max(beyond, 0.0), useful * max(0.0, full / mark.world - 1))
        kept.append((mark.step, useful, capacity))
        cause = _cause((at, mark.at), beyond - capacity, useful, disturbances)
        lost[cause] = lost.get(cause, 0.0) + beyond - capacity
        longest = max(longest, mark.at - at)
        missing += (useful + capacity) * (full - min(mark.world, full))
        at, step = mark.at, mark.step
    cause = _cause((at, end), end - at, inside[-1].samples * second, disturbances)
    lost[cause] = lost.get(cause, 0.0) + end - at
    lost[CAPACITY] = sum(capacity for _, _, capacity in kept)
    productive = sum(useful for _, useful, _ in kept)
    at_full = second * next(mark.samples for mark in inside if mark.world == full)
    return Account(end - begin, productive, lost, at_full, max(longest, end - at), rolled_back, missing)


def _cause(interval: tuple[float, float], rest: float, useful: float, disturbances: Sequence[tuple[float, str]]) -> str:
    """Of the ``rest`` that the interval took beyond its ``useful`` seconds."""
    if rest < useful / 2:
        return SCATTER
    within = (cause for at, cause in disturbances if interval[0] < at < interval[1])
    before = (cause for at, cause in reversed(disturbances) if at <= interval[0])
    return next(within, next(before, SCATTER))
