"""The pictures of docs/sharing.md: the GPUs of each application over time, and the distribution of completion times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench_scheduling import kit
from bench_scheduling.kit import Played
from elastrain_operator.allocation.snapshot import Sharing

APPLICATIONS = ("imagenet", "yolov3", "bert", "deepspeech2", "cifar10", "ncf")
HOURS = 10.0
"""Of the first picture: the arrivals take 8."""


def draw(done: Sequence[Played], folder: Path, to: Path) -> list[Path]:
    """``sharing-gpus.png`` of the first workload, ``sharing-jct.png`` of all; for the shortest rescale of ``done``."""
    import matplotlib as mpl

    mpl.use("Agg")
    to.mkdir(parents=True, exist_ok=True)
    least = min(p.run.rescale for p in done)
    mine = [p for p in done if p.run.rescale == least and p.run.placement == "anew"]
    return [_gpus(mine, to / "sharing-gpus.png"), _completion(mine, folder, to / "sharing-jct.png")]


def _gpus(done: Sequence[Played], to: Path) -> Path:
    import matplotlib.pyplot as plt

    shown = [p for p in done if p.run.policy in list(Sharing) and p.run.workload == done[0].run.workload]
    figure, axes = plt.subplots(len(shown), 1, figsize=(9, 2.4 * len(shown)), sharex=True, squeeze=False)
    for axis, played in zip(axes[:, 0], shown, strict=True):
        times = np.array([t for t, _ in played.sizes]) / 3600
        held = [[sizes.get(name, 0) for _, sizes in played.sizes] for name in APPLICATIONS]
        axis.stackplot(times, held, labels=APPLICATIONS, step="post", linewidth=0)
        axis.set(ylabel="GPUs", title=_label(played), xlim=(0, HOURS), ylim=(0, 64))
    axes[0, 0].legend(ncols=len(APPLICATIONS), fontsize=7, loc="upper left")
    axes[-1, 0].set_xlabel("hours")
    return _saved(figure, to)


def _completion(done: Sequence[Played], folder: Path, to: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 4))
    for label in dict.fromkeys(map(_label, done)):
        times = np.sort([t for p in done if _label(p) == label for t in p.jct.values()])
        axis.plot(times, np.arange(1, len(times) + 1) / len(times), label=f"{label}, rescale {done[0].run.rescale:g} s")
    for name, style in (("pollux", "--"), ("tiresias", ":")):
        times = np.sort(np.concatenate(list(kit.published(folder, name, done[0].run.load).values())))
        axis.plot(
            times, np.arange(1, len(times) + 1) / len(times), style, color="gray", label=f"{name}, published, 30 s"
        )
    axis.set(xscale="log", xlabel="completion time (s)", ylabel="part of the jobs", xlim=(30, 1e5), ylim=(0, 1))
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    return _saved(figure, to)


def _label(played: Played) -> str:
    batch = ", batches chosen by goodput" if played.run.batch == "free" else ""
    return played.run.policy + batch


def _saved(figure: object, to: Path) -> Path:
    figure.tight_layout()
    figure.savefig(to, dpi=90)
    return to
