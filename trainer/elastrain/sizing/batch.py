"""The batch of an optimizer step within the user's bounds, chosen by goodput. Pure.

The model of speed and goodput is that of :mod:`elastrain.sizing.speedup`, with ranks for workers.
"""

from __future__ import annotations

import math

from elastrain.api.settings import LearningRate
from elastrain.sizing.speedup import Batches, Measured, learned

WORTHWHILE = 1.07
"""A batch is changed only for a goodput of so many times the present one."""
LARGEST_CHANGE = 2
"""Largest factor of one change: what is not measured yet is reached in steps that are."""


def learning_rate_factor(rule: LearningRate, factor: int, base: int, noise: float | None) -> float:
    """What the script's learning rate is multiplied by in a step of ``factor`` batches of ``base`` samples.

    ``noise``: the noise scale in samples; None: not measured yet, and AdaScale then keeps the rate.
    """
    match rule:
        case LearningRate.ADA_SCALE:
            samples = factor * base
            return 1.0 if noise is None else factor * Batches(base, samples, noise).efficiency(samples)
        case LearningRate.SQUARE_ROOT:
            return math.sqrt(factor)
        case LearningRate.LINEAR:
            return float(factor)
        case LearningRate.UNCHANGED:
            return 1.0


def choose(*, factor: int, ranks: int, measured: tuple[Measured, ...], batches: Batches) -> int:
    """The factor of the next steps: how many batches of the script, of ``batches.base`` samples, each takes.

    ``factor``: the present one. ``measured``: times of steps, by ranks. The batch stays if the noise scale or the time
    of the present step is unknown.
    """
    base = batches.base
    largest = max(batches.most // base, 1)
    if factor > largest:
        return largest
    known = {m.batch for m in measured if m.workers == ranks}
    if batches.noise is None or factor * base not in known:
        return factor
    model = learned(measured, batches.micro)

    def goodput(k: int) -> float:
        return model.goodput(ranks, k * base, spans=False, batches=batches)

    present, least = goodput(factor), -(-factor // LARGEST_CHANGE)
    for k in range(factor - 1, least - 1, -1):  # a larger batch that has not paid is given up
        if k * base in known and goodput(k) > present:
            return k
    best = max(range(least, min(factor * LARGEST_CHANGE, largest) + 1), key=lambda k: (goodput(k), -k))
    return best if goodput(best) > WORTHWHILE * present else factor
