"""Steps while nothing happens: what the figures of an event are compared with. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rescale_harness.results import RunResult, Undisturbed
from rescale_harness.steplog import Line

WARM_UP_STEPS = 3
"""Steps after the start that do not count as undisturbed."""

Window = tuple[float, float]


def quiet_steps(windows: Sequence[Window], by_node: Mapping[int, Sequence[Line]]) -> dict[int, list[float]]:
    """World size -> seconds of each step that lies within one of ``windows``, as the first node with a step in it saw
    it: in a healthy world all take the same time."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for start, end in windows:
        for lines in (by_node[node] for node in sorted(by_node)):
            commits = [x for x in lines if x.kind == "commit" and start <= x.at <= end]
            if commits:
                for a, b in pairwise(commits):
                    if a.world == b.world:
                        seconds[b.world].append(b.at - a.at)
                break
    return dict(seconds)


def figures(seconds: Mapping[int, Sequence[float]]) -> tuple[Undisturbed, ...]:
    """By size, smallest first; sizes without a step are left out."""
    return tuple(
        Undisturbed(size=size, steps=len(of), median=statistics.median(of), p95=percentile(of, 0.95), longest=max(of))
        for size, of in sorted(seconds.items())
        if of
    )


def over_runs(runs: Sequence[RunResult]) -> tuple[Undisturbed, ...]:
    """Medians of the runs' medians and percentiles; the longest of all."""
    by_size: dict[int, list[Undisturbed]] = defaultdict(list)
    for run in runs:
        for one in run.undisturbed:
            by_size[one.size].append(one)
    return tuple(
        Undisturbed(
            size=size,
            steps=sum(u.steps for u in of),
            median=statistics.median(u.median for u in of),
            p95=statistics.median(u.p95 for u in of),
            longest=max(u.longest for u in of),
        )
        for size, of in sorted(by_size.items())
    )


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest of ``values`` that at least ``part`` (0 to 1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
