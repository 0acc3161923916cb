"""The batch of an optimizer step within the user's bounds, chosen by goodput. Pure.

The *noise scale* of the gradients, in samples, says what a larger batch is worth (McCandlish et al. 2018): progress for
each sample with a batch of M samples, relative to the script's own batch of B samples, is (noise + B) / (noise + M).
*Goodput* is this efficiency times samples per second (Pollux, OSDI 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from elastrain.api.settings import LearningRate

WORTHWHILE = 1.07
"""A batch is changed only for a goodput of so many times the present one."""
LARGEST_CHANGE = 2
"""Largest factor of one change: what is not measured yet is reached in steps that are."""
OPTIMISM = 0.3
"""Assumed part of a step's time that does not grow with the batch, until a second batch is measured."""
_TRUST = 0.002
"""Weight of this assumption against one measurement."""


def efficiency(factor: float, base: int, noise: float) -> float:
    """Progress for each sample with a batch of ``factor * base`` samples, relative to one of ``base``."""
    return (noise + base) / (noise + factor * base)


def learning_rate_factor(rule: LearningRate, factor: int, base: int, noise: float | None) -> float:
    """What the script's learning rate is multiplied by in a step of ``factor`` batches of ``base`` samples.

    ``noise``: the noise scale in samples; None: not measured yet, and AdaScale then keeps the rate.
    """
    match rule:
        case LearningRate.ADA_SCALE:
            return 1.0 if noise is None else factor * efficiency(factor, base, noise)
        case LearningRate.SQUARE_ROOT:
            return math.sqrt(factor)
        case LearningRate.LINEAR:
            return float(factor)
        case LearningRate.UNCHANGED:
            return 1.0


class StepTimes:
    """Seconds of a step by ranks and samples: measured ones as they are, others by a fit of fixed + each * samples of
    a rank."""

    def __init__(self, measured: Mapping[tuple[int, int], float]) -> None:
        """``measured``: seconds, by (ranks, samples)."""
        self.measured = dict(measured)
        self._fixed, self._each = _line([(n / w, s) for (w, n), s in self.measured.items()])

    def __call__(self, ranks: int, samples: int) -> float:
        """Raises ``ValueError`` if nothing was measured."""
        if not self.measured:
            raise ValueError("no step was measured")
        known = self.measured.get((ranks, samples))
        return self._fixed + self._each * samples / ranks if known is None else known


def choose(
    *,
    factor: int,
    base: int,
    most: int,
    noise: float | None,
    ranks: int,
    seconds: Callable[[int, int], float],
    measured: Collection[tuple[int, int]],
) -> int:
    """The factor of the next steps: how many batches of the script, of ``base`` samples, each takes.

    ``factor``: the present one. ``most``: samples of the largest batch. ``seconds(ranks, samples)`` of a step;
    ``measured``: where it is a measurement. The batch stays if the noise scale or the present step's time is unknown.
    """
    largest = max(most // base, 1)
    if factor > largest:
        return largest
    if noise is None or (ranks, factor * base) not in measured:
        return factor

    def goodput(k: int) -> float:
        return efficiency(k, base, noise) * k * base / seconds(ranks, k * base)

    present = goodput(factor)
    for k in sorted(range(1, factor), reverse=True):  # a larger batch that has not paid is given up
        if LARGEST_CHANGE * k >= factor and (ranks, k * base) in measured and goodput(k) > present:
            return k
    reach = range(-(-factor // LARGEST_CHANGE), min(factor * LARGEST_CHANGE, largest) + 1)
    best = max(reach, key=lambda k: (goodput(k), -k))
    return best if goodput(best) > WORTHWHILE * present else factor


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Non-negative (fixed, each) with the least relative errors of fixed + each * x, near the assumption."""
    if not points:
        return 0.0, 0.0
    x0, t0 = max(points)
    rows = [(t0 / t, t0 * x / x0 / t) for x, t in points]  # of unknowns in units of t0 and t0 / x0
    aa, bb = sum(a * a for a, _ in rows) + _TRUST, sum(b * b for _, b in rows) + _TRUST
    ab = sum(a * b for a, b in rows)
    ra, rb = sum(a for a, _ in rows) + _TRUST * OPTIMISM, sum(b for _, b in rows) + _TRUST * (1 - OPTIMISM)
    det = aa * bb - ab * ab
    fixed, each = (ra * bb - rb * ab) / det, (rb * aa - ra * ab) / det
    if fixed < 0:
        fixed, each = 0.0, rb / bb
    elif each < 0:
        fixed, each = ra / aa, 0.0
    return fixed * t0, each * t0 / x0
