"""From a series of footprints to a verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

STEADY_FROM = 0.2
"""Part of the cycles after which everything that is made once (pools, caches, buckets) has been made."""
KIB_A_CYCLE = 100.0
"""Growth of memory that is not called a leak. A group that was never freed is more than a megabyte; torch's own bare
re-initialisation of gloo grows by 6 KiB a cycle. The allocator's heap moves by some MiB up and down, so that it takes
some 200 cycles to tell."""


COUNT_A_CYCLE = 0.04
"""Growth of threads or file descriptors that is not called a leak: two in 50 cycles, which may be on their way out."""


class Footprint(BaseModel):
    """Of one process at one moment."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    threads: int
    fds: int
    private_kib: int
    """Memory that is this process's alone and was written to, KiB."""


class Sample(BaseModel):
    """After so many cycles."""

    model_config = ConfigDict(frozen=True)

    cycle: int
    footprint: Footprint


class Growth(BaseModel):
    """Of one process over the steady part of the cycles."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    threads: float
    """A cycle, by the slope of the median line through the samples, as are the others."""
    fds: float
    kib: float

    @property
    def leaks(self) -> list[str]:
        """What grows: the words for a table; empty: nothing."""
        found = [name for name, slope in (("threads", self.threads), ("fds", self.fds)) if slope > COUNT_A_CYCLE]
        return found + (["memory"] if self.kib > KIB_A_CYCLE else [])


def growth(samples: Sequence[Sample]) -> Growth:
    """``samples``: of one process, in order. Raises ``ValueError`` if fewer than three are in the steady part."""
    steady = [s for s in samples if s.cycle >= STEADY_FROM * samples[-1].cycle]
    if len(steady) < 3:
        raise ValueError(f"{len(steady)} samples after the first fifth of the cycles, at least 3 are needed")
    cycles = [s.cycle for s in steady]
    return Growth(
        threads=slope(cycles, [s.footprint.threads for s in steady]),
        fds=slope(cycles, [s.footprint.fds for s in steady]),
        kib=slope(cycles, [s.footprint.private_kib for s in steady]),
    )


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The median of the slopes between all pairs of points (Theil 1950, Sen 1968): a jump or two do not tilt it.

    ``xs`` must differ.
    """
    pairs = [(i, j) for i in range(len(xs)) for j in range(i + 1, len(xs))]
    return statistics.median((ys[j] - ys[i]) / (xs[j] - xs[i]) for i, j in pairs)
