"""From blocks to figures. Pure.

The unit is the quad: two blocks of each variant that lie around the same moment. A slow drift of the machine is the
same for both, and a disturbance spoils a quad or two, which the median over quads leaves aside.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from pydantic import BaseModel, ConfigDict

from steady_harness.case import Block, Case, Variant

GOAL = 0.005
"""Part of a plain step that elastrain may cost."""
RESAMPLES = 2000
CONFIDENCE = 0.95


class Interval(BaseModel):
    """A median over quads with its bootstrap confidence interval."""

    model_config = ConfigDict(frozen=True)

    low: float
    median: float
    high: float


class Comparison(BaseModel):
    """elastrain against ``case.baseline``."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    case: Case
    step: float
    """Seconds of a step of the baseline: the median over blocks."""
    cpu_step: float
    """Processor seconds of a step of the baseline, all ranks together."""
    ratio: Interval
    """Extra wall time of a step as a part of the baseline's."""
    micros: Interval
    """The same in microseconds."""
    cpu_ratio: Interval
    cpu_micros: Interval
    """Extra processor time of a step of one rank, microseconds."""
    agent_cpu: float | None = None
    """Processor seconds that one agent took in a second, both variants' time together: a part of one core."""
    etcd_cpu: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the goal is kept, as far as the interval tells."""
        if self.ratio.high <= GOAL:
            return "kept"
        return "missed" if self.ratio.low > GOAL else "not resolved"


def compare(case: Case, blocks: Sequence[Block]) -> Comparison:
    """The figures of one case. Raises ``ValueError`` if a block of a rank is missing."""
    wall = quad_sums(case, [b for b in blocks if b.rank == 0], lambda b: b.wall)
    cpu = quad_sums(case, blocks, lambda b: b.cpu)
    steps = 2 * case.block
    base = [b for b in blocks if b.variant == case.baseline]
    return Comparison(
        case=case,
        step=statistics.median(b.wall / b.steps for b in base if b.rank == 0),
        cpu_step=statistics.median(theirs for _, theirs in cpu) / steps,
        ratio=interval([ours / theirs - 1 for ours, theirs in wall]),
        micros=interval([1e6 * (ours - theirs) / steps for ours, theirs in wall]),
        cpu_ratio=interval([ours / theirs - 1 for ours, theirs in cpu]),
        cpu_micros=interval([1e6 * (ours - theirs) / steps / case.ranks for ours, theirs in cpu]),
    )


def quad_sums(case: Case, blocks: Sequence[Block], figure: Callable[[Block], float]) -> list[tuple[float, float]]:
    """For each quad, ``figure`` summed over elastrain's two blocks and over the baseline's, of all given ranks."""
    sums: dict[int, dict[Variant, float]] = defaultdict(lambda: defaultdict(float))
    ranks = {b.rank for b in blocks}
    for b in blocks:
        sums[b.number // 4][b.variant] += figure(b)
    if len(blocks) != 4 * case.quads * len(ranks) or not blocks:
        raise ValueError(f"{case.name}: {len(blocks)} blocks of {len(ranks)} ranks, expected {4 * case.quads} of each")
    return [(sums[q]["elastrain"], sums[q][case.baseline]) for q in range(case.quads)]


def interval(values: Sequence[float], seed: int = 0) -> Interval:
    """The median of ``values`` with its percentile-bootstrap interval (Efron 1979)."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    low, high = (medians[min(RESAMPLES - 1, math.floor(p * RESAMPLES))] for p in (tail, 1 - tail))
    return Interval(low=low, median=statistics.median(values), high=high)
