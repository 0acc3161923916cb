"""The shares of the ranks in proportion to their measured speed, with ``spec.shares: measured``.

Each vote carries the time per sample of each rank, so that all ranks know the same times at the same step.
:func:`follow` is the decision, a pure function of them; :class:`MeasuredShares` applies it at step boundaries, and each
vote compares what the ranks have applied.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from elastrain.api.batch import RankShare
from elastrain.data.share import Share
from elastrain.elastic.comm.header import RanksDiverged

log = structlog.get_logger(__name__)

WHOLE = 1 << 16
"""Sum of the weights of all parts."""
WINDOW = 8
"""Steps of a decision, before a reversal."""
LONGEST = 64
"""Most windows of one decision."""
GAIN = 0.02
"""A decision changes the shares only if the step's computation becomes shorter by at least this part of its time."""
CHANGE = 0.5
"""A decision changes no share by more than this part of it."""
MOST = 2.0
"""Of the equal share: bounds the memory of a part."""
REPORTED = 16
"""Most ranks in a report."""
LEAST = 1 / 16
"""Of the equal share: a rank that is slower is a straggler (:mod:`elastrain.agent.core.health`)."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares in force, and what the next decision is made of. The same on all ranks of a generation."""

    weights: tuple[int, ...] = ()
    """By part; empty: equal."""
    windows: int = 1
    """Windows of a decision: doubled by each reversal, so that a speed that flaps is averaged, and halved by each one
    that changes nothing, so that one that has flapped or scattered is followed again."""
    moved: tuple[int, ...] = ()
    """The last change of the weights."""
    times: tuple[tuple[float, ...], ...] = ()
    """By step since the last decision: seconds per sample, by part."""
    seconds: tuple[float, ...] = ()
    """Per sample, by part, as of the last decision; empty before the first one of a generation."""


def begun(paces: Sequence[int]) -> Shares:
    """The shares at the begin of a generation. Pure.

    ``paces``: nanoseconds per sample that each rank has measured before, by part; 0: not known. Such a rank counts as
    the mean of the others. Equal shares if none is known.
    """
    known = [pace for pace in paces if pace > 0]
    if not known:
        return Shares()
    mean = sum(known) / len(known)
    return Shares(proportional([(pace if pace > 0 else mean) / 1e9 for pace in paces]))


def follow(now: Shares, times: Sequence[float]) -> Shares:
    """The shares of the next step, after a step with these ``times`` (seconds per sample, by part). Pure.

    A step in which a part has no time (0) is left out. Shares that are in proportion to the speeds stay; others move
    toward it, bounded by ``CHANGE``, ``LEAST`` and ``MOST``.
    """
    if len(times) < 2 or min(times) <= 0.0:
        return now
    seen = (*now.times, tuple(times))
    if len(seen) < WINDOW * now.windows:
        return replace(now, times=seen)
    parts = len(times)
    old = now.weights or even(parts)
    seconds = tuple(_trimmed([row[part] for row in seen]) for part in range(parts))
    goal = proportional(seconds)
    before, after = (max(w * s for w, s in zip(weights, seconds, strict=True)) for weights in (old, goal))
    if after > before * (1.0 - GAIN):
        return replace(now, windows=max(1, now.windows // 2), times=(), seconds=seconds)
    moves = [new - was for new, was in zip(goal, old, strict=True)]
    if sum(a * b for a, b in zip(moves, now.moved, strict=False)) < 0 and now.windows < LONGEST:
        # Look longer before going back.
        return replace(now, windows=2 * now.windows, times=(), moved=(), seconds=seconds)
    part = min(1.0, *(CHANGE * was / abs(move) for was, move in zip(old, moves, strict=True) if move))
    new = _whole([was + part * move for was, move in zip(old, moves, strict=True)])
    return Shares(new, now.windows, tuple(b - a for a, b in zip(old, new, strict=True)), seconds=seconds)


def reported(now: Shares) -> tuple[RankShare, ...]:
    """Shares and speeds of the slowest ranks, slowest first; empty before the first decision. Pure."""
    if not now.seconds:
        return ()
    parts = len(now.seconds)
    slowest = sorted(range(parts), key=lambda part: -now.seconds[part])[:REPORTED]
    weights = now.weights or even(parts)
    return tuple(
        RankShare(
            rank=part,
            share=round(weights[part] * parts / WHOLE, 3),
            samples_per_second=float(f"{1 / now.seconds[part]:.3g}"),
        )
        for part in slowest
    )


def even(parts: int) -> tuple[int, ...]:
    """Equal weights."""
    return _whole([1.0] * parts)


def proportional(seconds: Sequence[float]) -> tuple[int, ...]:
    """Weights in proportion to the speeds, between ``LEAST`` and ``MOST`` of the equal one.

    ``seconds``: per sample, by part.
    """
    parts = len(seconds)
    speeds = [1.0 / s for s in seconds]
    low, high = LEAST / parts, min(MOST / parts, 1.0)
    fixed: dict[int, float] = {}
    while True:  # what the bounds take from some parts, or add to them, is shared by the others
        free = [p for p in range(parts) if p not in fixed]
        left, total = 1.0 - sum(fixed.values()), sum(speeds[p] for p in free)
        shares = {p: left * speeds[p] / total for p in free}
        above = {p: high for p in free if shares[p] > high}
        beyond = above or {p: low for p in free if shares[p] < low}
        if not beyond or len(beyond) == len(free):
            return _whole([fixed.get(p, shares.get(p, 0.0)) for p in range(parts)])
        fixed |= beyond


def _whole(shares: Sequence[float]) -> tuple[int, ...]:
    """Whole weights of at least 1 that add up to ``WHOLE``; the largest part takes what rounding leaves."""
    total = sum(shares)
    weights = [max(1, round(WHOLE * share / total)) for share in shares]
    largest = max(range(len(weights)), key=lambda p: weights[p])
    weights[largest] += WHOLE - sum(weights)
    return tuple(weights)


def _trimmed(values: list[float]) -> float:
    """The mean without the smallest and the largest eighth: a pause of one step does not count."""
    cut = len(values) // 8
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


class EqualShares:
    """All parts of a batch are equal, up to one sample or micro-batch."""

    pace = 0
    """Nanoseconds that this rank takes for a sample; 0: not known."""

    def of(self, share: Share) -> Share:
        """``share`` with the weights in force."""
        return share

    @property
    def reported(self) -> tuple[RankShare, ...]:
        """As of :func:`reported`."""
        return ()

    def enter(self, paces: Sequence[int]) -> None:
        """A generation begins. ``paces``: by part, as of :attr:`pace`."""

    def votes(self, share: Share, parts: int, seconds: float, samples: int) -> Sequence[float]:
        """What this rank adds to its vote: equally many numbers on all ranks.

        ``parts``: of a step without learners. ``seconds``: of this rank's computation of its ``samples``.
        """
        return ()

    def check(self, votes: Sequence[float]) -> None:
        """Raises :class:`RanksDiverged` if the ranks differ in their shares. ``votes``: the sum."""

    def commit(self, votes: Sequence[float], *, learning: bool) -> None:
        """The step of these ``votes`` is committed. ``learning``: with learners."""


class MeasuredShares(EqualShares):
    """Parts follow the speeds of their ranks, also those measured in the generation before."""

    def __init__(self) -> None:
        self.now = Shares()
        self._part = 0
        self._put(self.now)

    def of(self, share: Share) -> Share:
        weights = self.now.weights
        return share._replace(weights=weights) if len(weights) == share.parts and not share.learner else share

    @property
    def reported(self) -> tuple[RankShare, ...]:
        return reported(self.now)

    def enter(self, paces: Sequence[int]) -> None:
        self._put(begun(paces))

    def votes(self, share: Share, parts: int, seconds: float, samples: int) -> Sequence[float]:
        times = [0.0] * parts
        if samples and share.parts == parts:
            self._part = share.part
            times[share.part] = seconds / samples
        return [*times, self._mark, 1.0]

    def check(self, votes: Sequence[float]) -> None:
        *_, marks, ranks = votes
        if marks != self._mark * ranks:
            raise RanksDiverged("the ranks differ in their shares of the batch: spec.shares must be the same on all")

    def commit(self, votes: Sequence[float], *, learning: bool) -> None:
        if learning:
            return
        after = follow(self.now, votes[:-2])
        if after.seconds:
            self.pace = max(1, round(1e9 * after.seconds[self._part]))
        if after.weights == self.now.weights:
            self.now = after
            return
        self._put(after)
        log.info("the shares of the ranks follow their speeds", shares=[round(w / WHOLE, 4) for w in after.weights])

    def _put(self, now: Shares) -> None:
        self.now, self._mark = now, float(zlib.crc32(repr(now.weights).encode()))
