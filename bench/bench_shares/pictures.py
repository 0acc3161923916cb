"""The picture of docs/measured.md: throughput over time while one of two ranks gets slower, or its speed flaps."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_shares.speeds import BATCH, FAST, speed

sys.path.append(str(Path(__file__).parents[2] / "examples/shared"))
import curves as family  # type: ignore[import-not-found]

COLOURS = {"measured": family.GREEN, "equal": family.ORANGE, "torchrun": family.BLUE}
STEPS = 5
"""Over which a speed is a mean: a single step is as noisy as a sleep."""


def pace(ends: Sequence[float]) -> tuple[list[float], list[float]]:
    """Moments and samples per second. ``ends``: of each step, in seconds. Pure."""
    moments = list(ends[STEPS:])
    return moments, [STEPS * BATCH / (end - begin) for begin, end in zip(ends, moments, strict=False)]


def draw(runs: Mapping[str, Mapping[str, Sequence[float]]], seconds: float, to: Path) -> None:
    """``runs``: by scenario and system, the end of each step of one run. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(family.STYLE)
    figure, panels = plt.subplots(1, len(runs), figsize=(5.5 * len(runs), 3.6), layout="constrained", squeeze=False)
    moments = [seconds * k / 1000 for k in range(1001)]
    first, *_ = row = list(panels[0])
    for axes, (scenario, systems) in zip(row, runs.items(), strict=True):
        sums = [FAST * (1 + speed(scenario, now)) for now in moments]
        axes.plot(moments, sums, color=family.OTHER, linewidth=1, label="sum of the speeds", zorder=1)
        for system, ends in systems.items():
            axes.plot(*pace(ends), color=COLOURS[system], linewidth=2 if system == "measured" else 1.3, label=system)
        axes.set(xlim=(0, seconds), ylim=(0, 1.1 * max(sums)), xlabel="seconds", title=scenario)
    first.set_ylabel("samples per second")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(to, dpi=100)
