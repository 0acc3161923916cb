"""Loss and world size of a job over time, as a picture for the documentation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

from harness.commands import ROOT

sys.path.append(str(ROOT / "examples/shared"))
import curves

mpl.use("Agg")  # draws to files; no display is needed
from matplotlib import pyplot as plt


def draw(path: Path, read: curves.Curves, title: str, marks: Mapping[str, float]) -> None:
    """``marks``: what happened → when, in seconds since the epoch."""
    start = min(read.times.values())
    at = {step: when - start for step, when in read.times.items()}
    plt.rcParams.update(curves.STYLE)
    figure, (losses, sizes) = plt.subplots(
        2, 1, figsize=(11, 6), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    figure.suptitle(title, fontsize=14, fontweight="bold")
    steps = sorted(at)
    losses.plot([at[s] for s in steps], [read.losses[s] for s in steps], color=curves.STORM, linewidth=1.0)
    losses.set_ylabel("loss")
    losses.set_yscale("log")
    curves.draw_sizes(sizes, {at[step]: read.worlds[step] for step in steps})
    sizes.set_xlabel("seconds")
    for axes in (losses, sizes):
        for when in marks.values():
            axes.axvline(when - start, color=curves.RED, linewidth=1, linestyle="--")
    for what, when in marks.items():
        place = (when - start, 0.97)
        losses.annotate(f" {what}", place, xycoords=("data", "axes fraction"), va="top", color=curves.RED)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


read = curves.read
