"""What the demo shows at its end: loss and world size over time beside the undisturbed run, with the pauses.

In the terminal by characters, in a file by matplotlib.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.text import Text

from elastrain.api.records import Rescale

sys.path.append(str(Path(__file__).parents[1] / "shared"))
import curves

BLOCKS = " ▁▂▃▄▅▆▇█"
ROWS = 6  # of the terminal's loss curve
LABELS = 13  # columns to the left of it


@dataclass(frozen=True, slots=True)
class Tour:
    """Two trainings with the same steps, one of them disturbed."""

    calm: curves.Curves
    storm: curves.Curves
    rescales: Sequence[Rescale]
    """Of the disturbed one, without its start."""

    @property
    def began(self) -> float:
        """When it committed its first step, in seconds since the epoch."""
        return min(self.storm.times.values())

    def when(self, step: int) -> float:
        """Seconds from there until ``step`` was committed."""
        times = self.storm.times
        return times.get(step, min(times.values())) - self.began

    @property
    def apart(self) -> float:
        """Greatest difference between the two losses of a step."""
        both = self.calm.losses.keys() & self.storm.losses.keys()
        return max((abs(self.calm.losses[s] - self.storm.losses[s]) for s in both), default=math.nan)


def mark_of(rescale: Rescale) -> tuple[str, str, str]:
    """Character, matplotlib's marker and colour."""
    if rescale.to_size > rescale.from_size:
        return "▲", "^", curves.GREEN
    if rescale.reason == "Drain":
        return "▼", "v", curves.BLUE
    return "✗", "X", curves.ORANGE


# ---- in the terminal -------------------------------------------------------------------------------------------------
def show(tour: Tour, console: Console) -> None:
    """Print the picture, at most 100 columns wide."""
    width = max(20, min(console.width, 100) - LABELS - 1)
    end = max(tour.when(step) for step in tour.storm.losses) or 1.0
    columns: list[list[int]] = [[] for _ in range(width)]
    for step in sorted(tour.storm.losses):
        columns[min(width - 1, int(tour.when(step) / end * width))].append(step)
    log = {name: _logs(columns, run.losses) for name, run in (("storm", tour.storm), ("calm", tour.calm))}
    low = min(v for row in log.values() for v in row if v is not None)
    high = max(v for row in log.values() for v in row if v is not None)

    def height(value: float | None, steps: int) -> int:
        return 0 if value is None else 1 + round((value - low) / (high - low or 1.0) * (steps - 1))

    heights = [height(v, ROWS * 8) for v in log["storm"]]
    for row in reversed(range(ROWS)):
        cells = "".join(BLOCKS[max(0, min(8, h - row * 8))] for h in heights)
        label = {ROWS - 1: f"loss {math.exp(high):.3g}", 0: f"{math.exp(low):.2g}"}.get(row, "")
        console.print(Text.assemble(f"{label:>{LABELS - 1}} ", (cells, "cyan")))
    calm = "".join(BLOCKS[height(v, 8)] for v in log["calm"])
    console.print(Text.assemble(f"{'undisturbed':>{LABELS - 1}} ", (calm, "yellow")))
    worlds = _filled([max((tour.storm.worlds[s] for s in steps), default=None) for steps in columns])
    console.print(Text.assemble(f"{'ranks':>{LABELS - 1}} ", "".join(worlds)))
    console.print(_marks(tour, width, end))
    for number, rescale in enumerate(tour.rescales, 1):
        mark, _, colour = mark_of(rescale)
        console.print(
            Text.assemble(
                f"{number:>{LABELS - 3}} ", (mark, colour), f" {tour.when(rescale.step):5.1f} s  ",
                f"{rescale.from_size} → {rescale.to_size} ranks ({rescale.reason}): pause ",
                (f"{rescale.pause_seconds * 1000:.0f} ms", "bold"),
            )
        )  # fmt: skip


def _logs(columns: Sequence[Sequence[int]], losses: Mapping[int, float]) -> list[float | None]:
    """Of each column the logarithm of its median loss."""
    found = [[losses[s] for s in steps if s in losses] for steps in columns]
    return [math.log(max(median(values), 1e-12)) if values else None for values in found]


def _filled(worlds: Sequence[int | None]) -> list[str]:
    """One character a column; one in which no step was committed repeats the one before."""
    shown: list[str] = []
    for world in worlds:
        shown.append(str(world) if world is not None else (shown[-1] if shown else " "))
    return shown


def _marks(tour: Tour, width: int, end: float) -> Text:
    """The row of marks below the ranks; where two fall together, the later one gives way to the right."""
    row: list[tuple[str, str]] = [(" ", "")] * width
    at = -1
    for rescale in tour.rescales:
        at = max(at + 1, min(width - 1, int(tour.when(rescale.step) / end * width)))
        if at < width:
            mark, _, colour = mark_of(rescale)
            row[at] = (mark, colour)
    return Text.assemble(" " * LABELS, *row, f" {end:.0f} s")


# ---- in a file -------------------------------------------------------------------------------------------------------
def draw(tour: Tour, path: Path, title: str) -> None:
    """Draw into ``path`` (PNG or SVG). Raises ``ModuleNotFoundError`` without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")  # draws to files; no display is needed
    from matplotlib import pyplot as plt

    plt.rcParams.update(curves.STYLE)
    figure, (losses, sizes) = plt.subplots(
        2, 1, figsize=(11, 6.6), sharex=True, height_ratios=(2.6, 1.6), layout="constrained"
    )
    figure.suptitle(title, fontsize=14, fontweight="bold")
    steps = sorted(tour.storm.losses)
    over: Callable[[Mapping[int, float]], tuple[list[float], list[float]]] = lambda of: (  # noqa: E731
        [tour.when(s) for s in steps if s in of],
        [of[s] for s in steps if s in of],
    )
    names = ("undisturbed on one worker, at the same step", "this run")
    curves.draw_losses(losses, over(tour.calm.losses), over(tour.storm.losses), names)
    losses.set_yscale("log")
    losses.set_ylabel("loss of the global batch")
    curves.draw_sizes(sizes, {tour.when(s): tour.storm.worlds[s] for s in steps})
    sizes.set_xlabel("seconds since the first step")
    sizes.set_xlim(0, max(tour.when(s) for s in steps))
    most = max(tour.storm.worlds.values())
    sizes.set_ylim(0, most + 1.5)
    sizes.set_yticks(range(most + 1))
    sizes.set_title("each change with its pause", fontsize=10.5, loc="left")
    for rescale in tour.rescales:
        at = tour.when(rescale.step)
        colour = mark_of(rescale)[2]
        for axes in (losses, sizes):
            axes.axvline(at, color=colour, linewidth=0.8, alpha=0.6, zorder=0)
    _annotate(tour, sizes)
    figure.align_ylabels()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _annotate(tour: Tour, axes: object) -> None:
    """Each change with its mark, and above all of them its pause; where two are close together, in two rows."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    last, row = -math.inf, 0
    most = max(tour.storm.worlds.values())
    room = 0.09 * max(tour.when(s) for s in tour.storm.losses)
    for rescale in tour.rescales:
        at = tour.when(rescale.step)
        row = 1 - row if at - last < room else 0
        last = at
        _, marker, colour = mark_of(rescale)
        axes.scatter([at], [rescale.to_size], color=colour, marker=marker, s=70, edgecolors="white", zorder=3)
        axes.annotate(
            f"{rescale.pause_seconds * 1000:.0f} ms", (at, most + 1.0 - 0.55 * row), (4, 0),
            textcoords="offset points", fontsize=10, color=colour, fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip
