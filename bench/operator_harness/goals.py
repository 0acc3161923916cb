"""The bounds that the operator is to keep, judged by the worst run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from operator_harness.results import Report, Run

JOBS = 1000
"""At which the goals of a creation apply."""
MANY = 3000
"""At which the goal of being idle applies."""
ENOUGH_PODS = 10_000
"""At which the goal of memory applies, with at least ``JOBS`` jobs."""
TIMES_BATCH = 1.1
CPU_SECONDS = 16.0
RSS_MB = 200.0
REQUESTS = 8.0
IDLE_PERCENT = 1.0


@dataclass(frozen=True, slots=True)
class Goal:
    words: str
    bound: str
    measured: str
    met: bool


def goals(report: Report) -> list[Goal]:
    """Those that the runs of ``report`` can answer."""
    return [goal for goal in (_speed(report), _cpu(report), _requests(report), _memory(report), _idle(report)) if goal]


def _speed(report: Report) -> Goal | None:
    """Each creation against that of batch Jobs in the same turn: what else the machine does falls on both."""
    ours, theirs = _runs(report, "elastrain", JOBS), _runs(report, "batch", JOBS)
    ratios = [a.create.seconds / b.create.seconds for a, b in zip(ours, theirs, strict=False)]
    words = f"{JOBS:,} jobs all Running, against batch Jobs in the same turn"
    return _goal(words, f"≤ {TIMES_BATCH:g} ×", ratios, TIMES_BATCH, "{:.2f} ×")


def _cpu(report: Report) -> Goal | None:
    values = [r.create.cpu for r in _runs(report, "elastrain", JOBS)]
    return _goal(f"operator CPU to create {JOBS:,} jobs", f"≤ {CPU_SECONDS:g} s", values, CPU_SECONDS, "{:.1f} s")


def _requests(report: Report) -> Goal | None:
    values = [r.create.own_requests / r.jobs for r in report.runs if r.system == "elastrain"]
    words = "its API requests a job from creation to Running, at every size"
    return _goal(words, f"≤ {REQUESTS:g}", values, REQUESTS, "{:.2f}")


def _memory(report: Report) -> Goal | None:
    runs = [r for r in report.runs if r.system == "elastrain" and r.jobs >= JOBS and _most_pods(r) >= ENOUGH_PODS]
    values = [max(r.create.rss_mb, r.rescale.cost.rss_mb if r.rescale else 0) for r in runs]
    most = max((_most_pods(r) for r in runs), default=0)
    jobs = max((r.jobs for r in runs), default=0)
    words = f"peak RSS at {JOBS:,} jobs and {ENOUGH_PODS:,} pods (measured with {jobs:,} and {most:,})"
    return _goal(words, f"≤ {RSS_MB:g} MB", values, RSS_MB, "{:.0f} MB")


def _idle(report: Report) -> Goal | None:
    values = [100 * r.idle.cpu / r.idle.seconds for r in _runs(report, "elastrain", MANY) if r.idle]
    return _goal(f"idle with {MANY:,} jobs", f"≤ {IDLE_PERCENT:g} % of a core", values, IDLE_PERCENT, "{:.2f} %")


def _most_pods(run: Run) -> int:
    return run.jobs * (run.workers + (1 if run.rescale else 0))


def _runs(report: Report, system: str, jobs: int) -> list[Run]:
    return [r for r in report.runs if (r.system, r.jobs) == (system, jobs)]


def _goal(words: str, bound: str, values: Iterable[float], limit: float, how: str) -> Goal | None:
    worst = max(values, default=None)
    return None if worst is None else Goal(words, bound, how.format(worst), worst <= limit)
