"""The picture of docs/sharing.md: held-out loss over samples, and over effective samples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench_convergence.analysis import Curve

sys.path.append(str(Path(__file__).parents[2] / "examples/shared"))
import curves as family

COLOURS = (family.BLUE, family.ORANGE, family.GREEN, family.RED)
AXES = (("samples", "samples"), ("effective", "effective samples: progress"))


def draw(curves: Sequence[Curve], to: Path) -> None:
    """A row for each task; bands are one standard deviation over the seeds, of smoothed losses."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(family.STYLE)
    tasks = list(dict.fromkeys(c.task for c in curves))
    figure, axes = plt.subplots(
        len(tasks), 2, figsize=(11, 3.6 * len(tasks)), sharey="row", squeeze=False, layout="constrained"
    )
    for row, task in zip(axes, tasks, strict=True):
        ends = [c.points[-1].loss for c in curves if c.task == task]
        wide = max(c.points[0].loss for c in curves if c.task == task) > 10 * min(ends)
        for axis, (by, label) in zip(row, AXES, strict=True):
            rules = dict.fromkeys(c.rule for c in curves if c.task == task)
            colours = iter(COLOURS)
            for rule in rules:
                colour = next(colours) if rule else family.STORM
                mine = [c for c in curves if (c.task, c.rule) == (task, rule)]
                xs = np.linspace(0.1, 1, 60) * min(getattr(c.points[-1], by) for c in mine)
                ys = np.array([[c.loss_at(float(x), by=by) for x in xs] for c in mine])
                middle, spread = ys.mean(0), ys.std(0)
                axis.plot(xs, middle, label=rule or "the script's batch", color=colour)
                axis.fill_between(xs, middle - spread, middle + spread, alpha=0.15, color=colour, linewidth=0)
            axis.set(xlabel=label, title=task, yscale="log" if wide else "linear")
        row[0].set_ylabel("held-out loss")
    names = axes[0, 0].get_legend_handles_labels()
    figure.legend(*names, loc="outside upper center", ncols=len(names[0]), frameon=False)
    figure.savefig(to, dpi=100)
