"""How far training is and when it will be done."""

from __future__ import annotations

from datetime import datetime, timedelta

from elastrain.api.job import ProgressStatus
from elastrain.api.records import Progress


def progress_status(previous: ProgressStatus | None, report: Progress | None, now: datetime) -> ProgressStatus | None:
    """``report`` in the words of the status; ``previous`` while nothing new was reported, so that time alone changes
    nothing.

    The pace is that of undisturbed steps: what rescales and repairs will cost is not foreseen.
    """
    if report is None:
        return previous
    same = previous is not None and (previous.step, previous.of) == (report.step, report.total_steps)
    pace = samples_per_second(report)
    if same and previous is not None and (previous.samples_per_second is None) == (pace is None):
        return previous
    return ProgressStatus(
        step=report.step, of=report.total_steps, epoch=report.epoch, samples_per_second=pace, eta=_eta(report, now)
    )


def samples_per_second(report: Progress) -> float | None:
    """Samples of a step, on average of all committed ones, over the smoothed time of an undisturbed step."""
    if not report.step or not report.step_seconds:
        return None
    return round(report.samples / report.step / report.step_seconds, 1)


def eta_seconds(report: Progress) -> float | None:
    """Seconds that the remaining steps take; None: not known."""
    if report.total_steps is None or report.step_seconds is None:
        return None
    return max(0, report.total_steps - report.step) * report.step_seconds


def _eta(report: Progress, now: datetime) -> str | None:
    seconds = eta_seconds(report)
    if seconds is None or report.finished:
        return None
    return (now + timedelta(seconds=min(seconds, _YEARS))).isoformat(timespec="seconds")


_YEARS = 100 * 365 * 86400.0
"""A date beyond it cannot be written, and means nothing."""
