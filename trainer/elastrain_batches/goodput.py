"""The batch of an optimizer step within the user's bounds, chosen by goodput. Pure.

The model of speed and goodput is that of :mod:`elastrain_resource.sizing.speedup`, with ranks for workers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from elastrain.api.settings import LearningRate
from elastrain_resource.sizing.speedup import Batches, Measured, learned

LARGEST_GROWTH = 2
"""Largest factor by which a batch grows at once: what is not measured yet is reached in steps that are."""


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

    As of :meth:`elastrain_resource.sizing.speedup.Speedup.next_batch`. ``factor``: the present one. ``measured``: times
    of steps, by ranks. The batch stays if the noise scale or the time of the present step is unknown.
    """
    present, most = factor * batches.base, max(batches.most, batches.base)
    if present <= most and not is_known(present, ranks, measured, batches):
        return factor
    reach = replace(batches, each=0, most=min(most, LARGEST_GROWTH * present))  # a rank may have no sample
    model = learned(measured, batches.micro)
    return model.next_batch(present, ranks, spans=False, batches=reach) // batches.base


def is_known(present: int, ranks: int, measured: tuple[Measured, ...], batches: Batches) -> bool:
    """Whether the noise scale and the time of a step of ``present`` samples are known: else the batch stays."""
    return batches.noise is not None and any((m.workers, m.batch) == (ranks, present) for m in measured)


def larger(*, factor: int, ranks: int, measured: tuple[Measured, ...], batches: Batches) -> tuple[int, float] | None:
    """The next larger batch, and what it gains in goodput, as a part of the present goodput.

    Arguments as of :func:`choose`, which changes for a gain of more than ``WORTHWHILE``. None: what :func:`is_known`
    asks for is unknown, or the present batch is the largest.
    """
    present = factor * batches.base
    following = min(LARGEST_GROWTH * factor, batches.most // batches.base) * batches.base
    if following <= present or not is_known(present, ranks, measured, batches):
        return None
    model = learned(measured, batches.micro)
    before, after = (model.goodput(ranks, b, spans=False, batches=batches) for b in (present, following))
    return following, after / before - 1
