"""The measured shares in force on a rank: what it votes, what it applies, and what it knows of memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import structlog

from elastrain.api.batch import RankShare, ShareLimit
from elastrain.api.settings import MAX_SHARE
from elastrain.api.shape import ONE_RANK, Shape
from elastrain.data.share import Place, Share
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.shares import EqualShares
from elastrain_shares.follow import WHOLE, WINDOW, Shares, begun, even, follow

log = structlog.get_logger(__name__)

REPORTED = 16
"""Most ranks in a report."""


class MeasuredShares(EqualShares):
    """Parts follow the speeds of their ranks, also those measured in the generation before.

    The ranks of one replica of a sharded model compute in step: the replica is one unit, as fast as its slowest rank.

    A rank that is lost before it has computed a larger part than any before for a few steps may have run out of memory.
    From then on no share is greater than the largest that was computed. The survivors keep that, also for new ranks.
    """

    def __init__(self, most: float = MAX_SHARE, shape: Shape = ONE_RANK) -> None:
        """``most``: ``spec.maxShare``."""
        self.now = Shares()
        self._most, self._shape = most, shape
        self._unit, self._units = 0, 1
        self._ceiling = self._proven = 0
        self._put(self.now)

    def of(self, share: Share) -> Share:
        weights = self._weights
        return share._replace(weights=weights) if len(weights) == share.parts and not share.learner else share

    @property
    def reported(self) -> tuple[RankShare, ...]:
        return reported(self.now, self._most, self._ceiling, self._shape.size)

    def ceiling(self, *, lost: bool) -> int:
        largest = max(self.now.weights, default=0)
        if lost and self._proven and largest > max(self._proven, *even(self._units)):
            self._ceiling = min(self._ceiling or WHOLE, self._proven)
            log.warning(
                "a rank was lost after its share had grown, perhaps for want of memory: no share is greater again",
                share=round(self._ceiling / WHOLE, 4),
            )
            self._put(Shares())
        return self._ceiling

    def enter(self, paces: Sequence[int], ceiling: int = 0) -> None:
        size = self._shape.size
        of_units = [max(paces[first : first + size]) for first in range(0, len(paces), size)]
        self._units, self._ceiling = len(of_units), ceiling
        self._put(begun(of_units, bound(self._units, self._most, ceiling)))

    def votes(self, share: Share, place: Place, *, seconds: float, samples: int) -> Sequence[float]:
        times = [0.0] * place.world_size
        if samples and share.parts == place.share.parts:
            self._unit = place.rank // self._shape.size
            times[place.rank] = seconds / samples
        return [*times, self._mark, 1.0]

    def check(self, votes: Sequence[float]) -> None:
        *_, marks, ranks = votes
        if marks != self._mark * ranks:
            raise RanksDiverged("the ranks differ in their shares of the batch: spec.shares must be the same on all")

    def commit(self, votes: Sequence[float], *, learning: bool) -> None:
        if learning:
            return
        self._steps += 1
        if self._steps == WINDOW:
            self._proven = max(self._proven, *(self.now.weights or even(self._units)))
        after = follow(self.now, self._of_units(votes[:-2]), bound(self._units, self._most, self._ceiling))
        if after.seconds:
            self.pace = max(1, round(1e9 * after.seconds[self._unit]))
        if after.weights == self.now.weights:
            self.now = after
            return
        self._put(after)
        log.info("the shares of the ranks follow their speeds", shares=[round(w / WHOLE, 4) for w in after.weights])

    def _of_units(self, times: Sequence[float]) -> list[float]:
        """By unit, from those by rank: that of its slowest rank; 0 if one has none."""
        size = self._shape.size
        groups = [times[first : first + size] for first in range(0, len(times), size)]
        return [max(group) if min(group) > 0.0 else 0.0 for group in groups]

    @property
    def _parts(self) -> int:
        """Parts of a unit, which are equal."""
        return self._shape.part(0, self._shape.size)[1]

    def _put(self, now: Shares) -> None:
        self.now, self._mark, self._steps = now, float(zlib.crc32(repr(now.weights).encode())), 0
        self._weights = tuple(weight for weight in now.weights for _ in range(self._parts))
        """By part."""


def bound(units: int, most: float, ceiling: int) -> float:
    """The largest share, as a part of the whole. Pure. ``most``: of the equal one. ``ceiling``: a weight; 0: none."""
    return min(most / units, ceiling / WHOLE if ceiling else 1.0, 1.0)


def reported(now: Shares, most: float = MAX_SHARE, ceiling: int = 0, size: int = 1) -> tuple[RankShare, ...]:
    """Shares and speeds of the slowest units, slowest first, with the fastest one if a bound holds it. Pure.

    Empty before the first decision. A unit of ``size`` ranks is named by its first one.
    """
    if not now.seconds:
        return ()
    units = len(now.seconds)
    weights = now.weights or even(units)
    order = sorted(range(units), key=lambda unit: -now.seconds[unit])
    highest = bound(units, most, ceiling)
    limit = ShareLimit.LOSS if ceiling and ceiling * units < most * WHOLE else ShareLimit.MAX_SHARE
    held = {unit for unit in order if now.weights and weights[unit] >= highest * WHOLE - units}
    shown = order[: REPORTED - 1] + order[-1:] if order[-1] in held else order
    return tuple(
        RankShare(
            rank=unit * size,
            share=round(weights[unit] * units / WHOLE, 3),
            samples_per_second=float(f"{1 / now.seconds[unit]:.3g}"),
            limit=limit if unit in held else None,
        )
        for unit in shown[:REPORTED]
    )
