"""The table of a report. Pure."""

from __future__ import annotations

from bench_harness.machine import Machine
from bench_harness.stats import Model
from bench_harness.tables import Table
from bench_steady.analysis import GOAL, Comparison, Interval

NOTE = "Median over quads (95 % bootstrap interval)."


class Report(Model):
    """Everything."""

    machine: Machine
    comparisons: tuple[Comparison, ...]


def table(report: Report) -> Table:
    header = ("case", "step", "wall %", f"≤ {GOAL:.1%}", "wall µs", "cpu %", "cpu µs a rank", "agent cpu", "etcd cpu")
    rows = [
        (
            c.case.name,
            f"{1000 * c.step:.2f} ms",
            spread(c.ratio, 100, ".2f"),
            c.verdict,
            spread(c.micros, 1, ".0f"),
            spread(c.cpu_ratio, 100, ".2f"),
            spread(c.cpu_micros, 1, ".0f"),
            "–" if c.agent_cpu is None else f"{c.agent_cpu:.2%}",
            "–" if c.etcd_cpu is None else f"{c.etcd_cpu:.2%}",
        )
        for c in report.comparisons
    ]
    return Table("Extra cost of a step", header, tuple(rows))


def spread(interval: Interval, scale: float, form: str) -> str:
    low, median, high = (format(scale * v, form) for v in (interval.low, interval.median, interval.high))
    return f"{median} ({low} to {high})"
