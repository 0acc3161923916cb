"""What driver and rank of ``bench/convergence.py`` share; without torch, so that the driver starts at once."""

from __future__ import annotations

from bench_harness.stats import Model

ENV = "BENCH_CONVERGENCE"
"""A :class:`Case` as JSON."""


class Case(Model):
    """One run."""

    task: str
    """``digits`` or ``language``."""
    seed: int
    epochs: int
    samples: int
    """Of the training set."""
    base: int
    """Samples of the script's batch."""
    rate: float
    """The script's learning rate."""
    every: int
    """Effective samples from one look at the held-out loss to the next."""
    out: str
