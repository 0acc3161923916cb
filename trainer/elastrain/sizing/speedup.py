"""How fast a job trains at a size, learned from its own steps. Pure.

The time of a step with ``w`` workers, as a sum of non-negative terms (Amdahl's law with communication; Optimus, EuroSys
2018, fits the same kind of sum):

    fixed + parallel / w + (w > one node) * network + (w - 1) * each

A ridge regression of relative errors, towards a prior that is mildly optimistic, finds the four. One measured size then
predicts a bounded speed-up of larger ones, so that the job tries them, and a second one corrects it. Measured sizes
keep their measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

FIXED = 0.1
"""Assumed part of a step that more workers do not shorten."""
NETWORK = 0.1
"""Assumed increase of a step's time if workers are on several nodes."""
TRUST = 0.002
"""Weight of these assumptions against one measurement."""

_TERMS = 4
_SUBSETS = tuple(c for n in range(_TERMS, 0, -1) for c in combinations(range(_TERMS), n))


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of a job's steps at one size and placement."""

    workers: int
    nodes: int
    """Nodes on which the workers were."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Speedup:
    """The fitted model of one job."""

    terms: tuple[float, ...]
    """Empty: nothing was measured, and the speed counts as proportional to the workers."""
    known: tuple[tuple[int, bool, float], ...] = ()
    """(workers, on several nodes, seconds) as measured."""

    @property
    def largest(self) -> int:
        """The largest measured number of workers; 0: none."""
        return max((w for w, _, _ in self.known), default=0)

    def speed(self, workers: int, *, spans: bool) -> float:
        """Steps per second; relative to one worker if nothing was measured. ``spans``: on several nodes."""
        if workers <= 0:
            return 0.0
        if not self.terms:
            return float(workers)
        for w, several, seconds in self.known:
            if (w, several) == (workers, spans):
                return 1 / seconds
        return 1 / max(sum(t * f for t, f in zip(self.terms, _features(workers, spans), strict=True)), 1e-9)


@lru_cache(maxsize=1 << 15)
def learned(measured: tuple[Measured, ...]) -> Speedup:
    """The model of a job with these measurements, in any order."""
    known = tuple(sorted({(m.workers, m.nodes > 1): m.seconds for m in measured}.items()))
    points = tuple((w, several, seconds) for (w, several), seconds in known)
    return Speedup(_fit(points), points) if points else Speedup(())


def _fit(points: Sequence[tuple[int, bool, float]]) -> tuple[float, ...]:
    workers, _, first = points[0]
    scale = (first, first * workers, first, first / workers)
    prior = (FIXED, 1 - FIXED, NETWORK, 0.0)
    rows = [[f * s / t for f, s in zip(_features(w, several), scale, strict=True)] for w, several, t in points]
    square = [
        [sum(r[i] * r[j] for r in rows) + (TRUST if i == j else 0.0) for j in range(_TERMS)] for i in range(_TERMS)
    ]
    right = [sum(r[i] for r in rows) + TRUST * prior[i] for i in range(_TERMS)]
    return tuple(x * s for x, s in zip(_least(square, right), scale, strict=True))


def _features(workers: int, spans: bool) -> tuple[float, ...]:
    return (1.0, 1.0 / workers, float(spans), workers - 1.0)


def _least(square: list[list[float]], right: list[float]) -> list[float]:
    """The non-negative x with the least x·square·x - 2 right·x: the best of the solutions with some terms at 0."""
    best, found = float("inf"), [0.0] * len(right)
    for chosen in _SUBSETS:
        part = _solve([[square[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
        if min(part) < 0:
            continue
        cost = -sum(right[i] * x for i, x in zip(chosen, part, strict=True))  # at the minimum of the subset
        if cost < best:
            best, found = cost, [0.0] * len(right)
            for i, x in zip(chosen, part, strict=True):
                found[i] = x
    return found


def _solve(square: list[list[float]], right: list[float]) -> list[float]:
    """Gauss' elimination; the ridge makes ``square`` positive definite, so no pivot is 0."""
    rows = [[*r, x] for r, x in zip(square, right, strict=True)]
    for i, pivot in enumerate(rows):
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            for j in range(i, len(row)):
                row[j] -= factor * pivot[j]
    found: list[float] = []
    for i in range(len(rows) - 1, -1, -1):
        done = sum(rows[i][i + 1 + k] * x for k, x in enumerate(reversed(found)))
        found.append((rows[i][-1] - done) / rows[i][i])
    return found[::-1]


@lru_cache(maxsize=1 << 15)
def curve(measured: tuple[Measured, ...], node: int, most: int) -> tuple[float, ...]:
    """Speeds of a job with these measurements at 0, 1, …, ``most`` workers, of which ``node`` fit on one node."""
    model = learned(measured)
    return tuple(model.speed(w, spans=w > node) for w in range(most + 1))
