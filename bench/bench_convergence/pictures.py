"""The picture of docs/sharing.md: held-out loss over samples, and over effective samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench_convergence.analysis import Curve

AXES = (("samples", "samples"), ("effective", "effective samples: progress"))


def draw(curves: Sequence[Curve], to: Path) -> None:
    """A row for each task; bands are one standard deviation over the seeds, of smoothed losses."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(c.task for c in curves))
    figure, axes = plt.subplots(len(tasks), 2, figsize=(11, 3.6 * len(tasks)), sharey="row", squeeze=False)
    for row, task in zip(axes, tasks, strict=True):
        ends = [c.points[-1].loss for c in curves if c.task == task]
        wide = max(c.points[0].loss for c in curves if c.task == task) > 10 * min(ends)
        for axis, (by, label) in zip(row, AXES, strict=True):
            for rule in dict.fromkeys(c.rule for c in curves if c.task == task):
                mine = [c for c in curves if (c.task, c.rule) == (task, rule)]
                xs = np.linspace(0.1, 1, 60) * min(getattr(c.points[-1], by) for c in mine)
                ys = np.array([[c.loss_at(float(x), by=by) for x in xs] for c in mine])
                middle, spread = ys.mean(0), ys.std(0)
                (line,) = axis.plot(xs, middle, label=rule or "the script's batch", color=None if rule else "black")
                axis.fill_between(xs, middle - spread, middle + spread, alpha=0.15, color=line.get_color(), linewidth=0)
            axis.set(xlabel=label, title=task, yscale="log" if wide else "linear")
            axis.grid(alpha=0.3, which="both")
        row[0].set_ylabel("held-out loss")
        row[1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(to, dpi=90)
