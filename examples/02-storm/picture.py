"""The picture: two loss curves that lie on each other, what is left between them, and the storm. Needs matplotlib."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from proof import Run, curves, difference
from weather import Kind

mpl.use("Agg")  # draws to files; no display is needed
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

# Shapes differ as well as colours.
MARKS = {
    Kind.JOIN: (curves.GREEN, "^"),
    Kind.LEAVE: (curves.BLUE, "v"),
    Kind.KILL_RANK: (curves.ORANGE, "X"),
    Kind.KILL_WORKER: (curves.RED, "*"),
}


def draw(path: Path, runs: Sequence[Run], *, seed: int, dtype: str) -> None:
    """Draw ``runs`` (undisturbed, storm and, if there is one, another undisturbed one) into ``path``."""
    calm, storm = runs[:2]
    plt.rcParams.update(curves.STYLE)
    figure, (losses, between, sizes) = plt.subplots(
        3, 1, figsize=(11, 8.2), sharex=True, height_ratios=(3.2, 1.3, 2.0), layout="constrained"
    )
    figure.suptitle(
        f"{len(storm.fired)} random joins, leaves and kills: the loss curve is that of the undisturbed run",
        fontsize=14,
        fontweight="bold",
    )
    _losses(losses, calm, storm)
    _difference(between, calm, runs[1:], dtype)
    _sizes(sizes, storm, seed)
    figure.align_ylabels()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _losses(axes: Axes, calm: Run, storm: Run) -> None:
    steps = sorted(storm.losses)
    verdict = storm.verdict
    if verdict is not None:
        facts = f"{verdict.samples:,} samples: {verdict.lost} lost, {verdict.repeated} repeated"
        sizes = f"{sum(1 for r in storm.rescales.values() if r.from_size)} changes of generation"
        axes.set_title(f"a language model of Python's standard library; {sizes}; {facts}", fontsize=10.5)
    curves.draw_losses(
        axes,
        (list(calm.losses.keys()), list(calm.losses.values())),
        (steps, [storm.losses[s] for s in steps]),
        (calm.name, "through the storm"),
    )
    axes.set_ylabel("loss, nats per byte")


def _difference(axes: Axes, calm: Run, others: Sequence[Run], dtype: str) -> None:
    """On a logarithmic axis, so that steps without any difference are not seen."""
    seen = []
    for run, colour, name in zip(others, (curves.STORM, curves.OTHER), ("storm", None), strict=False):
        apart = {step: d for step, d in difference(calm, run).items() if d > 0}
        label = f"{name or run.name} − {calm.name}"
        axes.scatter(
            apart.keys(), apart.values(), color=colour, s=4, linewidths=0, label=label, zorder=3 if name else 2
        )
        seen += apart.values()
    axes.set_yscale("log")
    if seen:
        axes.set_ylim(10 ** math.floor(math.log10(min(seen))), 10 ** math.ceil(math.log10(max(seen)) + 0.5))
    axes.set_ylabel(f"|difference|,\n{dtype}")
    axes.legend(frameon=False, loc="upper left", ncols=2, markerscale=3, fontsize=10)


def _sizes(axes: Axes, storm: Run, seed: int) -> None:
    curves.draw_sizes(axes, storm.worlds)
    count = Counter(f.kind for f in storm.fired)
    for kind, (colour, shape) in MARKS.items():
        at = [f.step for f in storm.fired if f.kind is kind]
        axes.scatter(
            at, [storm.worlds.get(s, 1) for s in at], color=colour, marker=shape, s=120 if shape == "*" else 60,
            linewidths=0.6, edgecolors="white", label=f"{count[kind]} × {kind}", zorder=3, clip_on=False,
        )  # fmt: skip
    axes.set_xlabel(f"committed step (storm of seed {seed})")
    axes.set_xlim(0, storm.steps)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=4)
