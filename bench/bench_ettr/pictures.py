"""The picture of docs/sizing.md: paid time by scale and cause, of the model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from elastrain_plan.model import Split

sys.path.append(str(Path(__file__).parents[2] / "examples/shared"))
import curves as family  # type: ignore[import-not-found]

COLOURS = (
    "#56B4E9", family.RED, family.BLUE, family.ORANGE, family.CALM, "#CC79A7", family.OTHER, family.STORM,
)  # fmt: skip
LEAST = 1e-3
"""% of the paid time that is drawn."""


def draw(splits: Mapping[int, Split], to: Path) -> None:
    """``splits``: by number of cards. Left all paid time, right each lost part."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(family.STYLE)
    cards, ordered = sorted(splits), [splits[n] for n in sorted(splits)]
    causes = [f.name for f in fields(Split) if any(getattr(s, f.name) for s in ordered)]
    parts = {cause: [100 * getattr(split, cause) for split in ordered] for cause in causes}
    colours = dict(zip(causes, (family.GREEN, *COLOURS), strict=False))
    figure, (whole, lost) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    whole.stackplot(cards, list(parts.values()), labels=causes, colors=[colours[c] for c in causes], linewidth=0)
    whole.set(xscale="log", xlim=(cards[0], cards[-1]), ylim=(0, 100), xlabel="cards", ylabel="% of the paid time")
    for cause in causes[1:]:
        lost.plot(cards, parts[cause], color=colours[cause], linewidth=2)
    lost.set(xscale="log", yscale="log", xlim=(cards[0], cards[-1]), ylim=(LEAST, 100), xlabel="cards")
    lost.set_title("lost, by cause", fontsize=11)
    whole.set_title("a model, not a measurement", fontsize=11)
    figure.legend(*whole.get_legend_handles_labels(), loc="outside lower center", ncols=len(causes), frameon=False)
    figure.savefig(to, dpi=100)
