"""From blocks to figures. Pure.

The unit is the quad: two blocks of each variant around the same moment. A slow drift of the machine is the same for
both, and the median over quads ignores a quad that was disturbed. All quads of a start share the placement of its
memory: so the bootstrap draws starts, and quads within them.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from bench_harness.stats import Model
from bench_steady.case import Block, Case, Variant

GOAL = 0.005
"""Part of a plain step that elastrain may cost."""
RESAMPLES = 2000
CONFIDENCE = 0.95


Pairs = list[tuple[float, float]]
"""A figure of the subject and of the baseline, quad by quad."""


class Interval(Model):
    """A median over the quads of all starts with its bootstrap confidence interval."""

    low: float
    median: float
    high: float


class Comparison(Model):
    """``case.subject`` against ``case.baseline``."""

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
    """Processor seconds of one agent per second of both variants together: a part of one core."""
    etcd_cpu: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the whole interval lies on one side of the goal."""
        if self.ratio.high <= GOAL:
            return "kept"
        return "missed" if self.ratio.low > GOAL else "not resolved"


def compare(case: Case, starts: Sequence[Sequence[Block]]) -> Comparison:
    """The figures of one case, from the blocks of each start. Raises ``ValueError`` if a block of a rank is missing."""
    wall = [quad_sums(case, [b for b in blocks if b.rank == 0], lambda b: b.wall) for blocks in starts]
    cpu = [quad_sums(case, blocks, lambda b: b.cpu) for blocks in starts]
    steps = 2 * case.block
    base = [b for blocks in starts for b in blocks if b.variant == case.baseline]

    def over_quads(pairs: Iterable[Pairs], figure: Callable[[float, float], float]) -> Interval:
        return interval([[figure(ours, theirs) for ours, theirs in of_start] for of_start in pairs])

    return Comparison(
        case=case,
        step=statistics.median(b.wall / b.steps for b in base if b.rank == 0),
        cpu_step=statistics.median(theirs for of_start in cpu for _, theirs in of_start) / steps,
        ratio=over_quads(wall, lambda ours, theirs: ours / theirs - 1),
        micros=over_quads(wall, lambda ours, theirs: 1e6 * (ours - theirs) / steps),
        cpu_ratio=over_quads(cpu, lambda ours, theirs: ours / theirs - 1),
        cpu_micros=over_quads(cpu, lambda ours, theirs: 1e6 * (ours - theirs) / steps / case.ranks),
    )


def quad_sums(case: Case, blocks: Sequence[Block], figure: Callable[[Block], float]) -> Pairs:
    """For each quad of a start, ``figure`` summed over the subject's two blocks and over the baseline's, of all given
    ranks."""
    sums: dict[int, dict[Variant, float]] = defaultdict(lambda: defaultdict(float))
    ranks = {b.rank for b in blocks}
    for b in blocks:
        sums[b.number // 4][b.variant] += figure(b)
    if len(blocks) != 4 * case.quads * len(ranks) or not blocks:
        raise ValueError(f"{case.name}: {len(blocks)} blocks of {len(ranks)} ranks, expected {4 * case.quads} of each")
    return [(sums[q][case.subject], sums[q][case.baseline]) for q in range(case.quads)]


def interval(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The median of all values with its percentile-bootstrap interval (Efron 1979), by a bootstrap of two stages
    (Davison and Hinkley 1997, section 3.8): groups are drawn, and values within them."""
    draw = random.Random(seed)

    def resampled() -> float:
        return statistics.median(
            value for group in draw.choices(groups, k=len(groups)) for value in draw.choices(group, k=len(group))
        )

    medians = sorted(resampled() for _ in range(RESAMPLES))
    tail = (1 - CONFIDENCE) / 2
    low, high = (medians[min(RESAMPLES - 1, math.floor(p * RESAMPLES))] for p in (tail, 1 - tail))
    return Interval(low=low, median=statistics.median(value for group in groups for value in group), high=high)
