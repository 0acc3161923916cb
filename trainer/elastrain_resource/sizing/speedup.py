"""How fast a job trains at a size, learned from its own steps, and the batch at which it learns most. Pure.

The time of a step of ``batch`` samples with ``w`` workers, as a sum of non-negative terms (Amdahl's law with
communication; Optimus, EuroSys 2018, fits the same kind of sum):

    fixed + parallel * batch / w + (w > one node) * network + (w - 1) * each

A ridge regression of relative errors, towards a prior that is mildly optimistic, finds the four. One measured size then
predicts a bounded speed-up of larger ones, so that the job tries them, and a second one corrects it. Measured sizes
keep their measured times. The batch of a job that does not choose it counts as 1.

A job that chooses its batch makes most progress a second at ``sqrt(noise * rest / rate)``: ``rate`` are the seconds
that a sample adds to a step, ``rest`` those of a step without samples, ``noise`` is the noise scale of its gradients.
A sample of a batch is worth (noise + base) / (noise + batch) of one of the smallest batch, ``base`` (McCandlish et al.,
"An Empirical Model of Large-Batch Training", 2018; Pollux, OSDI 2021). With a bound on what a worker computes at once,
``fixed`` counts for each part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from operator import mul

FIXED = 0.1
"""Assumed part of a step that more workers do not shorten."""
FIXED_OF_BATCH = 0.5
"""The same if the job chooses its batch: a larger one does not lengthen it either, so that larger ones are tried."""
NETWORK = 0.1
"""Assumed increase of a step's time if workers are on several nodes."""
TRUST = 0.002
"""Weight of these assumptions against one measurement."""
FIRM_NETWORK = 10
"""How many times that weight the third one has: sizes on several nodes do not tell the network from a fixed part."""
FIRM = 50
"""How many times that weight the fourth one has: that workers cost each other nothing. Otherwise a job that is as fast
with 4 workers as with 8 would count as one that gets faster up to 6, and slower after them."""
BATCH_REACH = 4
"""A batch changes by at most this factor at once: a larger change waits for a measurement."""
WORTHWHILE = 1.07
"""A batch grows only for a goodput of more than so many times the present one; it shrinks for any."""

_TERMS = 4
_SUBSETS = tuple(c for n in range(_TERMS, 0, -1) for c in combinations(range(_TERMS), n))


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of a job's steps at one size and placement."""

    workers: int
    nodes: int
    """Nodes on which the workers were."""
    seconds: float
    batch: int | None = None
    """Samples of a step; None: the job does not choose its batch."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches among which a job chooses."""

    base: int
    """Samples of the smallest; the others are whole multiples."""
    most: int
    noise: float | None = None
    """Noise scale of its gradients, in samples; None: unknown, its batch is the smallest."""
    each: int = 1
    """Least samples of one worker."""
    micro: int | None = None
    """Most samples that one worker computes at once; None: all."""

    def efficiency(self, batch: float) -> float:
        """What a sample of this batch is worth, in samples of the smallest batch."""
        return 1.0 if self.noise is None else (self.noise + self.base) / (self.noise + batch)

    def bounds(self, workers: int) -> tuple[int, int]:
        """The smallest and the largest of so many workers."""
        low = -(-max(self.each * workers, self.base) // self.base) * self.base
        return low, max(low, self.most // self.base * self.base)


@dataclass(frozen=True, slots=True)
class Speedup:
    """The fitted model of one job."""

    terms: tuple[float, ...]
    """Empty: nothing was measured, and the speed counts as proportional to the workers."""
    known: tuple[tuple[int, bool, int, float], ...] = ()
    """(workers, on several nodes, batch, seconds) as measured."""
    micro: int | None = None
    """As of :class:`Batches`."""

    def seconds(self, workers: int, *, spans: bool, batch: int = 1) -> float:
        """Of a step; ``spans``: on several nodes. Another batch at a measured size is as much slower or faster than the
        model says as the measured ones."""
        ratios = []
        for w, several, samples, seconds in self.known:
            if (w, several) == (workers, spans):
                if samples == batch:
                    return seconds
                ratios.append(math.log(seconds / self._predicted(w, several, samples)))
        return self._predicted(workers, spans, batch) * (math.exp(sum(ratios) / len(ratios)) if ratios else 1.0)

    def _predicted(self, workers: int, spans: bool, batch: int) -> float:
        fixed, parallel, network, each = self.terms
        parts, share, several, others = _features(workers, spans, batch, self.micro)
        return max(fixed * parts + parallel * share + network * several + each * others, 1e-9)

    def speed(self, workers: int, *, spans: bool, batches: Batches | None = None) -> float:
        """Steps per second; for a job that chooses its batch, samples per second at the best one, in samples of the
        smallest; relative to one worker if nothing was measured."""
        if workers <= 0:
            return 0.0
        if not self.terms:
            return float(workers)
        if batches is None:
            return 1 / self.seconds(workers, spans=spans)
        return self._best(workers, spans, batches)[0]

    def goodput(self, workers: int, batch: int, *, spans: bool, batches: Batches) -> float:
        """Progress per second with this batch, in samples of the smallest batch."""
        return batch * batches.efficiency(batch) / self.seconds(workers, spans=spans, batch=batch)

    def best_batch(self, workers: int, *, spans: bool, batches: Batches) -> int:
        """The samples of a step at which the job makes most progress; the smallest batch if too little is known."""
        return self._best(workers, spans, batches)[1] if self.terms else batches.bounds(workers)[0]

    def _best(self, workers: int, spans: bool, batches: Batches) -> tuple[float, int]:
        """The goodput of the best batch, and the batch."""
        low, high = batches.bounds(workers)
        if not batches.noise or low == high:
            return self.goodput(workers, low, spans=spans, batches=batches), low
        fixed, parallel, network, each = self.terms
        rest, rate = (network if spans else 0.0) + (workers - 1) * each, max(parallel / workers, 1e-12)
        best = math.sqrt(batches.noise * (fixed + rest) / rate)
        full = self.micro * workers if self.micro else high
        if best > full:  # in several parts
            best = max(math.sqrt(batches.noise * rest / (rate + fixed / full)), full)
            near = [k * full for k in (math.floor(best / full), math.ceil(best / full))]
        else:
            near = [math.floor(best), math.floor(best) + batches.base]
        found = {min(max(n // batches.base * batches.base, low), high) for n in near}
        return max((self.goodput(workers, batch, spans=spans, batches=batches), batch) for batch in found)

    def next_batch(self, present: int, workers: int, *, spans: bool, batches: Batches) -> int:
        """The batch after ``present``: the best one within ``BATCH_REACH``, if that is worth a change. The present one
        stays within its bounds while the noise or all step times are unknown."""
        low, high = batches.bounds(workers)
        here = min(max(present, low), high)
        if here != present or not batches.noise or not self.terms:
            return here
        least, most = -(-present // (BATCH_REACH * batches.base)) * batches.base, BATCH_REACH * present
        best = max(min(self.best_batch(workers, spans=spans, batches=batches), most), least, low)
        tried = {b for w, n, b, _ in self.known if (w, n) == (workers, spans) and max(least, low) <= b < present}
        before = self.goodput(workers, present, spans=spans, batches=batches)
        found = [(before, present)]
        for batch in {best, *(b for b in tried if b % batches.base == 0)}:
            after = self.goodput(workers, batch, spans=spans, batches=batches)
            if after > before * (WORTHWHILE if batch > present else 1.0):
                found.append((after, batch))
        return max(found)[1]


def largest(measured: Iterable[Measured]) -> int:
    """The largest measured number of workers; 0: none."""
    return max((m.workers for m in measured), default=0)


@lru_cache(maxsize=1 << 15)
def learned(measured: tuple[Measured, ...], micro: int | None = None, *, sceptical: bool = False) -> Speedup:
    """The model of a job with these measurements, in any order. ``sceptical``: workers make it as little faster as the
    measurements permit."""
    known = tuple(sorted({(m.workers, m.nodes > 1, m.batch or 1): m.seconds for m in measured}.items()))
    points = tuple((*key, seconds) for key, seconds in known)
    return Speedup(_fit(points, micro, sceptical), points, micro) if points else Speedup(())


def _fit(points: Sequence[tuple[int, bool, int, float]], micro: int | None, sceptical: bool) -> tuple[float, ...]:
    workers, _, batch, first = points[0]
    parts, share, _, _ = _features(workers, False, batch, micro)
    scale = (first / parts, first / share, first, first / workers)
    fixed = FIXED if batch == 1 else FIXED_OF_BATCH
    prior = (1.0, 0.0, NETWORK, 0.0) if sceptical else (fixed, 1 - fixed, NETWORK, 0.0)
    rows = [[f * s / t for f, s in zip(_features(w, n, b, micro), scale, strict=True)] for w, n, b, t in points]
    trust = (TRUST, TRUST, FIRM_NETWORK * TRUST, FIRM * TRUST)
    square = [
        [sum(r[i] * r[j] for r in rows) + (trust[i] if i == j else 0.0) for j in range(_TERMS)] for i in range(_TERMS)
    ]
    right = [sum(r[i] for r in rows) + trust[i] * prior[i] for i in range(_TERMS)]
    return tuple(x * s for x, s in zip(_least(square, right), scale, strict=True))


def _features(workers: int, spans: bool, batch: int, micro: int | None) -> tuple[float, ...]:
    parts = float(-(-batch // (workers * micro))) if micro else 1.0
    return (parts, batch / workers, float(spans), workers - 1.0)


def _least(square: list[list[float]], right: list[float]) -> list[float]:
    """The non-negative x with the least x·square·x - 2 right·x. Some of its terms may be 0, and none of these would
    lower the sum: of all choices of terms one alone is so (Karush, Kuhn, Tucker)."""
    best, found = float("inf"), [0.0] * len(right)
    for chosen in _SUBSETS:
        part = _solve([[square[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
        if min(part) < 0:
            continue
        x = [0.0] * len(right)
        for i, value in zip(chosen, part, strict=True):
            x[i] = value
        slopes = [sum(map(mul, square[i], x)) - right[i] for i in range(len(right)) if i not in chosen]
        if min(slopes, default=0.0) >= 0:
            return x
        cost = -sum(map(mul, right, x))  # at the minimum of the subset
        if cost < best:  # rounding hides the one
            best, found = cost, x
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
def curve(measured: tuple[Measured, ...], node: int, most: int, batches: Batches | None = None) -> tuple[float, ...]:
    """Speeds of a job with these measurements at 0, 1, …, ``most`` workers, of which ``node`` fit on one node. A size
    that has run on several nodes only counts as on several: the scheduler may spread it again."""
    model = learned(measured, batches.micro if batches else None)
    spread = {m.workers for m in measured if m.nodes > 1} - {m.workers for m in measured if m.nodes == 1}
    return tuple(model.speed(w, spans=w > node or w in spread, batches=batches) for w in range(most + 1))
