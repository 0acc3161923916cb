"""Held-out losses of several seeds at equal progress. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench_harness.stats import Model

WINDOW = 0.15
"""The loss at a progress is the mean over the last looks up to it, over this part of it: single ones are noisy."""


class Point(Model):
    """One look at the held-out loss."""

    effective: float
    """Effective samples: the progress."""
    loss: float
    samples: float
    updates: int
    noise: float | None
    """Noise scale in samples; None: not measured."""


class Curve(Model):
    """One run."""

    task: str
    rule: str
    """How the learning rate followed the batch; empty: the batch was the script's."""
    seed: int
    points: tuple[Point, ...]

    def loss_at(self, progress: float, *, by: str = "effective") -> float:
        """Mean loss over the looks just up to ``progress``, in effective samples, or in ``samples``."""
        at = [(getattr(p, by), p.loss) for p in self.points]
        inside = [loss for x, loss in at if (1 - WINDOW) * progress < x <= progress]
        return statistics.fmean(inside) if inside else min(at, key=lambda one: abs(one[0] - progress))[1]


class Compared(Model):
    """The runs of one rule beside those with the script's batch."""

    task: str
    rule: str
    updates: float
    """Mean over the seeds, of the whole run."""
    samples: float
    """Mean samples of a step."""
    worth: float
    """Effective samples of the whole run, as a part of its samples."""
    at: tuple[float, ...]
    """Effective samples at which losses are compared."""
    losses: tuple[float, ...]
    """Mean over the seeds at these."""
    spreads: tuple[float, ...]
    """Standard deviation over the seeds."""
    at_samples: float
    """Mean loss where all runs have taken as many samples as the last of ``at``, whatever these were worth."""


def compared(curves: Sequence[Curve], parts: Sequence[float]) -> list[Compared]:
    """A row for each rule of one task, at these parts of the progress that all runs have reached."""
    end = min(c.points[-1].effective for c in curves)
    at = tuple(part * end for part in parts)
    rows = []
    for rule in dict.fromkeys(c.rule for c in curves):
        mine = [c for c in curves if c.rule == rule]
        lasts = [c.points[-1] for c in mine]
        losses = [[c.loss_at(progress) for c in mine] for progress in at]
        rows.append(
            Compared(
                task=mine[0].task,
                rule=rule,
                updates=statistics.fmean(p.updates for p in lasts),
                samples=statistics.fmean(p.samples / p.updates for p in lasts),
                worth=statistics.fmean(p.effective / p.samples for p in lasts),
                at=at,
                losses=tuple(map(statistics.fmean, losses)),
                spreads=tuple(statistics.stdev(found) if len(found) > 1 else 0.0 for found in losses),
                at_samples=statistics.fmean(c.loss_at(at[-1], by="samples") for c in mine),
            )
        )
    return rows
