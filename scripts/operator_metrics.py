"""The list of all metrics in docs/metrics.md: ``python scripts/operator_metrics.py`` prints it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from elastrain_operator.job.meter import JOBS, METRICS
from elastrain_operator.metrics import process

_OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")
OF_THE_PROCESS = (
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes",
    "process_start_time_seconds", "process_open_fds", "process_max_fds",
)  # fmt: skip
"""Metrics that Prometheus' client library exports for every process."""


@dataclass(frozen=True, slots=True)
class Described:
    """A metric as Prometheus sees it."""

    name: str
    """A counter's name with ``_total``; a histogram's without a suffix."""
    kind: str
    labels: tuple[str, ...]
    documentation: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names for queries."""
        return tuple(self.name + s for s in _OF_A_HISTOGRAM) if self.kind == "histogram" else (self.name,)


def metrics() -> list[Described]:
    """All metrics of the operator except :data:`OF_THE_PROCESS`: its own in declaration order, then the jobs'."""
    own = [_own(m) for m in vars(process).values() if isinstance(m, Counter | Gauge | Histogram)]
    kind, name, documentation, labels = JOBS
    of_jobs = [Described(m.name, m.kind, m.labels, m.documentation) for m in METRICS]
    return [*own, Described(name, kind, labels, documentation), *of_jobs]


def table() -> str:
    """As Markdown, without the labels that all metrics of jobs have."""
    lines = []
    for m in metrics():
        facts = ", ".join([m.kind, *(f"`{label}`" for label in m.labels if label not in ("namespace", "job"))])
        lines.append(f"- `{m.name}` ({facts}): {m.documentation}")
    return "\n".join(lines) + "\n"


def _own(collector: MetricWrapperBase) -> Described:
    (metric,) = collector.describe()
    name = metric.name + "_total" if metric.type == "counter" else metric.name
    # Without a sample, the library has no other access to the label names.
    return Described(name, metric.type, tuple(collector._labelnames), metric.documentation)


if __name__ == "__main__":
    sys.stdout.write(table())
