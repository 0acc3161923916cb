"""What the pictures of the examples have in common: the curves that a training leaves behind, and how they are drawn.

A rank appends one line of JSON to ``losses.<host>.<pid>.jsonl`` per committed step: step, ranks, loss and, where time
is drawn, seconds since the epoch. Needs matplotlib where something is drawn, not before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that the colour-blind can tell apart, by Okabe and Ito.
GREEN, BLUE, ORANGE, RED = "#009E73", "#0072B2", "#E69F00", "#D55E00"
CALM, STORM, OTHER = "#F0C75E", "#1B1B1B", "#999999"
STYLE = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}


@dataclass(slots=True)
class Curves:
    """Of one training, by committed step, from 1."""

    losses: dict[int, float] = field(default_factory=dict)
    """Of the global batch."""
    worlds: dict[int, int] = field(default_factory=dict)
    """Ranks that computed the step."""
    times: dict[int, float] = field(default_factory=dict)
    """When the first rank had committed it; empty where ranks did not say."""
    contradictions: list[str] = field(default_factory=list)


def read(folder: Path) -> Curves:
    """Every rank has written every step that it saw committed; they must agree to the bit."""
    curves = Curves()
    for file in sorted(folder.glob("losses.*.jsonl")):
        *lines, _torn = file.read_text().split("\n")  # what follows the last newline: a process was killed there
        for step, world, loss, *when in map(json.loads, lines):
            known = curves.losses.setdefault(step, loss), curves.worlds.setdefault(step, world)
            if known != (loss, world):
                curves.contradictions.append(f"step {step}: loss {loss} on {world} ranks, or {known[0]} on {known[1]}")
            if when:
                curves.times[step] = min(when[0], curves.times.get(step, when[0]))
    return curves


def draw_losses(
    axes: Axes, calm: tuple[list[float], list[float]], storm: tuple[list[float], list[float]], names: tuple[str, str]
) -> None:
    """Two curves, each as x and y: the undisturbed one broad and light, the other thin and dark upon it. The names
    stand on white, so that no line of an event crosses them."""
    axes.plot(*calm, color=CALM, linewidth=5, label=names[0])
    axes.plot(*storm, color=STORM, linewidth=1.0, label=names[1])
    axes.legend(loc="upper right", facecolor="white", edgecolor="none", framealpha=1)


def draw_sizes(axes: Axes, sizes: Mapping[float, int]) -> None:
    """Ranks that train, over whatever the keys are."""
    from matplotlib.ticker import MaxNLocator

    at = sorted(sizes)
    ranks = [sizes[x] for x in at]
    axes.fill_between(at, ranks, step="mid", color="#DDE3EA", linewidth=0)
    axes.step(at, ranks, where="mid", color="#66788A", linewidth=1.2)
    axes.set_ylim(0, max(ranks) + 0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("ranks that train")
