"""From one run's steps and checkpoints to its figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bench_harness.stats import Model

WARM_UP_STEPS = 10


class RunFigures(Model):
    """Of one run. Times are seconds."""

    system: str
    state_bytes: int
    """Of one complete checkpoint on its disk."""
    step: float
    """Median of the steps during which no checkpoint was written."""
    extra: tuple[float, ...]
    """Of each save: what the steps during it took beyond as many undisturbed ones."""
    longest: tuple[float, ...]
    """Of each save: the longest step during it."""
    saves: tuple[float, ...]
    """Of each save: from the commit of its step until a restart would take it."""
    start: float
    """From the start of the processes to the first step, without a checkpoint."""
    resume: float
    """The same with one."""


class SaveFigures(Model):
    """The part of :class:`RunFigures` that one training shows."""

    step: float
    extra: tuple[float, ...]
    longest: tuple[float, ...]
    saves: tuple[float, ...]


def save_figures(commits: Mapping[int, float], complete: Mapping[int, float]) -> SaveFigures:
    """``commits``: when each step was committed; ``complete``: when the checkpoint of a step was complete.

    The first save does not count: it allocates memory, and imports. Raises ``ValueError`` without a second one, and
    without an undisturbed step.
    """
    seconds = {step: commits[step] - commits[step - 1] for step in sorted(commits) if step - 1 in commits}
    during = {saved: _during(saved, end, commits) for saved, end in sorted(complete.items())}
    disturbed = {step for steps in during.values() for step in steps}
    calm = [s for step, s in seconds.items() if step > WARM_UP_STEPS and step not in disturbed]
    counted = dict(list(during.items())[1:])
    if not counted or not calm:
        raise ValueError(f"{len(complete)} checkpoints and {len(calm)} undisturbed steps: at least 2 and 1 are needed")
    step = statistics.median(calm)
    return SaveFigures(
        step=step,
        extra=tuple(sum(seconds[s] - step for s in steps) for steps in counted.values()),
        longest=tuple(max(seconds[s] for s in steps) for steps in counted.values()),
        saves=tuple(complete[saved] - commits[saved] for saved in counted),
    )


def _during(saved: int, end: float, commits: Mapping[int, float]) -> list[int]:
    """The steps that were computed while the checkpoint of ``saved`` was written: at least the next one."""
    later = [step for step in sorted(commits) if step > saved]
    return [step for step in later if step == saved + 1 or commits[step - 1] < end]
