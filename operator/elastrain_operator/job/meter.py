"""Metrics of the jobs that this operator serves, computed at each scrape from the last observation of their loops.

No series are stored: those of a deleted job end with its loop. Between scrapes the cost is one small value per job and
pass. The text is written line by line: Prometheus' client library needs ten times as long for it, which matters with
thousands of jobs (docs/metrics.md).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from elastrain.api.records import Progress, Rescale
from elastrain_operator import clock as time_of_day
from elastrain_operator.facts import JobRef, Observed
from elastrain_operator.policy.report import accelerator_seconds
from elastrain_operator.policy.report.accelerator_seconds import Usage
from elastrain_resource.job import JobStatus, LastRescale, RestartCounts, SparesStatus, reported
from elastrain_resource.job.batches import BatchStatus
from elastrain_resource.sizing.describe import efficiency

PAUSE_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Buckets of the pause in seconds: a rescale in process takes a fraction of one, a cold start minutes."""

_TRUTH = {"True": 1.0, "False": 0.0}


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as its loop last observed it."""

    job: JobRef
    phase: str
    wanted: int
    ready: int
    existing: int
    generation: int
    world_size: int
    step: int
    total_steps: int | None
    samples_per_second: float
    remaining_seconds: float | None
    restarts: RestartCounts
    conditions: tuple[tuple[str, float], ...]
    """Type, and 1 for True or 0 for False; without Unknown ones."""
    unhealthy: dict[str, int]
    """Number of unhealthy workers by health."""
    last_rescale: LastRescale | None
    spares: SparesStatus | None
    batch: BatchStatus | None
    slowest_share: float | None
    """Of the slowest rank, in equal shares."""
    effective_samples: int | None
    usage: Usage


def view(job: JobRef, status: JobStatus, report: Progress | None, usage: Usage) -> JobView:
    """The figures of one job. Speed is 0 and remaining time is absent while the job does not train."""
    trains = usage.use == "training" and usage.in_generation > 0
    return JobView(
        job=job,
        phase=status.phase or "Pending",
        wanted=status.desired_replicas or 0,
        ready=status.ready_replicas,
        existing=status.replicas,
        generation=status.generation.number if status.generation else 0,
        world_size=report.world_size if report and trains else 0,
        step=report.step if report else status.step or 0,
        total_steps=reported.total_steps(report) if report else None,
        samples_per_second=(reported.samples_per_second(report) or 0.0) if report and trains else 0.0,
        remaining_seconds=reported.eta_seconds(report) if report and trains else None,
        restarts=status.restarts,
        conditions=tuple((c.type, _TRUTH[c.status]) for c in status.conditions if c.status in _TRUTH),
        unhealthy=_by_health(status),
        last_rescale=status.last_rescale,
        spares=status.spares,
        batch=status.batch,
        slowest_share=status.rank_shares[0].share if status.rank_shares else None,
        effective_samples=status.progress.effective_samples if status.progress else None,
        usage=usage,
    )


@dataclass(slots=True)
class Tally:
    """Rescales that this operator has observed since its start."""

    by_reason: dict[str, int] = field(default_factory=dict)
    pauses: list[int] = field(default_factory=lambda: [0] * (len(PAUSE_BUCKETS) + 1))
    """Number of pauses per bucket, not cumulative; the last bucket is unbounded."""
    pause_sum: float = 0.0

    def add(self, rescales: Iterable[Rescale]) -> None:
        """Count changes of a training generation, without the start."""
        for rescale in rescales:
            if not rescale.from_size:
                continue
            self.by_reason[rescale.reason] = self.by_reason.get(rescale.reason, 0) + 1
            self.pauses[bisect.bisect_left(PAUSE_BUCKETS, rescale.pause_seconds)] += 1
            self.pause_sum += rescale.pause_seconds

    def buckets(self) -> list[tuple[str, int]]:
        """(upper bound, cumulative count), in Prometheus' form."""
        bounds = [*map(str, PAUSE_BUCKETS), "+Inf"]
        return list(zip(bounds, accumulate(self.pauses), strict=True))


class JobMeter:
    """The last observation of one job's loop, for the next scrape."""

    def __init__(self) -> None:
        self.view: JobView | None = None
        self.tally = Tally()

    def saw(
        self,
        job: JobRef,
        status: JobStatus,
        seen: Observed,
        before: Usage | None,
        usage: Usage | None,
    ) -> None:
        """After a pass: the current status, and the usage before the pass and up to now. ``usage`` is None if the pass
        computed none."""
        if usage is None:
            return
        report = seen.coordination.progress if seen.coordination else None
        before = before or (self.view.usage if self.view else None)
        if before is not None:  # rescales before this operator's start are not counted
            self.tally.add(accelerator_seconds.fresh(report, before.generation))
        self.view = view(job, status, report, usage)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the metrics of one job are read from, at one scrape."""

    job: JobView
    rescales: Tally
    usage: Usage
    """Up to now."""


Sample = float | None | Mapping[str, float]
"""A value; None: the job has none; or values by the metric's own label."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of each job, with the labels ``namespace`` and ``job``."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    """As in queries: a counter's with ``_total``, a histogram's without a suffix."""
    documentation: str
    read: Callable[[Seen], Sample]
    label: str = ""
    """One more label; empty: none."""

    @property
    def labels(self) -> tuple[str, ...]:
        return ("namespace", "job", self.label) if self.label else ("namespace", "job")

    def lines(self, job: str, seen: Seen) -> Iterator[str]:
        """The samples of a job, whose labels are ``job``."""
        if self.kind == "histogram":
            yield from _histogram(self.name, job, seen.rescales)
            return
        found = self.read(seen)
        if isinstance(found, Mapping):
            for value, number in found.items():
                yield f'{self.name}{{{job},{self.label}="{escaped(value)}"}} {number}\n'
        elif found is not None:
            yield f"{self.name}{{{job}}} {found}\n"


def _histogram(name: str, job: str, rescales: Tally) -> Iterator[str]:
    if not rescales.by_reason:
        return  # most of a job's series, so only if it has rescaled
    buckets = rescales.buckets()
    for bound, count in buckets:
        yield f'{name}_bucket{{{job},le="{bound}"}} {count}\n'
    yield f"{name}_sum{{{job}}} {rescales.pause_sum}\n{name}_count{{{job}}} {buckets[-1][1]}\n"


def _parts(of: object, names: Sequence[str]) -> dict[str, float]:
    return {name: getattr(of, name) for name in names}


CAUSES = ("user", "infrastructure", "preemption")
USES = ("training", "rescaling", "waiting", "redone", "spare")
JOBS = ("gauge", "elastrain_operator_jobs", "Jobs that this operator manages.", ("phase",))
"""The only metric that is not of one job: kind, name, meaning, labels."""
METRICS = (
    Metric("gauge", "elastrain_job_phase", "1 for the current phase of the job.", lambda s: {s.job.phase: 1}, "phase"),
    Metric(
        "gauge", "elastrain_job_condition", "1 if the condition is True, 0 if it is False. Absent if it is Unknown.",
        lambda s: dict(s.job.conditions), "type",
    ),
    Metric(
        "gauge", "elastrain_job_replicas_wanted", "Desired replicas: workers, or groups of several.",
        lambda s: s.job.wanted,
    ),
    Metric(
        "gauge", "elastrain_job_replicas", "Replicas whose pods exist and have not ended, without warm spares.",
        lambda s: s.job.existing,
    ),
    Metric("gauge", "elastrain_job_replicas_ready", "Replicas in the current generation.", lambda s: s.job.ready),
    Metric(
        "gauge", "elastrain_job_spares_wanted", "Desired number of warm spares. Absent without warmSpares.",
        lambda s: s.job.spares.desired if s.job.spares else None,
    ),
    Metric(
        "gauge", "elastrain_job_spares_ready", "Warm spares that are ready to train.",
        lambda s: s.job.spares.ready if s.job.spares else None,
    ),
    Metric("gauge", "elastrain_job_generation", "Number of the current generation.", lambda s: s.job.generation),
    Metric(
        "gauge", "elastrain_job_world_size", "Ranks in the current generation; 0 without one.",
        lambda s: s.job.world_size,
    ),
    Metric(
        "gauge", "elastrain_job_step", "Committed steps: the job's position. Decreases if steps are lost.",
        lambda s: s.job.step,
    ),
    Metric(
        "gauge", "elastrain_job_target_steps", "Committed steps at which the job will be complete.",
        lambda s: s.job.total_steps,
    ),
    Metric(
        "counter", "elastrain_job_steps_total", "Committed steps, including repeated ones. Never decreases.",
        lambda s: s.job.step + s.job.usage.redone_steps,
    ),
    Metric(
        "gauge", "elastrain_job_samples_per_second",
        "Samples per second, from undisturbed steps; 0 without a generation.", lambda s: s.job.samples_per_second,
    ),
    Metric(
        "gauge", "elastrain_job_remaining_seconds", "Time for the remaining steps at that rate.",
        lambda s: s.job.remaining_seconds,
    ),
    Metric(
        "gauge", "elastrain_job_batch_samples",
        "Samples of a step, as the ranks have chosen. Absent without spec.batch.",
        lambda s: s.job.batch.samples if s.job.batch else None,
    ),
    Metric(
        "gauge", "elastrain_job_batch_noise_scale",
        "Noise scale of the gradients in samples. Absent before it is measured.",
        lambda s: s.job.batch.noise_scale if s.job.batch else None,
    ),
    Metric(
        "gauge", "elastrain_job_batch_efficiency",
        "What a sample is worth in this batch, in samples of the script's batch.",
        lambda s: efficiency(s.job.batch) if s.job.batch else None,
    ),
    Metric(
        "gauge", "elastrain_job_batch_larger_gain",
        "Predicted gain of goodput by the next larger batch, as a part. Absent at the largest.",
        lambda s: s.job.batch.larger.gain if s.job.batch and s.job.batch.larger else None,
    ),
    Metric(
        "gauge", "elastrain_job_slowest_rank_share",
        "Part of the batch that the slowest rank computes, in equal shares. Absent without spec.shares: Measured.",
        lambda s: s.job.slowest_share,
    ),
    Metric(
        "gauge", "elastrain_job_effective_samples",
        "Progress: samples of the committed steps, each by what it was worth. Absent without spec.batch.",
        lambda s: s.job.effective_samples if s.job.batch else None,
    ),
    Metric(
        "counter", "elastrain_job_rescales_total",
        "Changes of the generation, by reason, since the operator's start.",
        lambda s: dict(sorted(s.rescales.by_reason.items())), "reason",
    ),
    Metric(
        "histogram", "elastrain_job_rescale_pause_seconds",
        "Time from the last committed step before a rescale to the first one after it, since the operator's start.",
        lambda _: None,
    ),
    Metric(
        "gauge", "elastrain_job_last_rescale_pause_seconds", "Pause of the last rescale.",
        lambda s: s.job.last_rescale.pause_seconds if s.job.last_rescale else None,
    ),
    Metric(
        "gauge", "elastrain_job_last_rescale_phase_seconds",
        "Phases of the last rescale: detect, decide, connect (in a planned rescale: in parallel with training), "
        "transfer (in parallel with the first step), first_step (the remainder of the first step).",
        lambda s: s.job.last_rescale.phases if s.job.last_rescale else None, "phase",
    ),
    Metric(
        "counter", "elastrain_job_restarts_total", "Replaced workers, by cause.",
        lambda s: _parts(s.job.restarts, CAUSES), "cause",
    ),
    Metric(
        "gauge", "elastrain_job_unhealthy_workers", "Workers that delay the others, by health: slow, stuck.",
        lambda s: {health: s.job.unhealthy.get(health, 0) for health in ("slow", "stuck")}, "health",
    ),
    Metric(
        "gauge", "elastrain_job_accelerators", "Accelerators held by the job's pods.", lambda s: s.usage.held
    ),
    Metric(
        "counter", "elastrain_job_accelerator_seconds_total",
        "Accelerator seconds held by the job's pods, by use: training, rescaling, waiting, redone, spare.",
        lambda s: _parts(s.usage, USES), "use",
    ),
    Metric(
        "counter", "elastrain_job_rescaling_accelerator_seconds_total",
        "Accelerator seconds of the measured pauses, by phase: what use=\"rescaling\" went to.",
        lambda s: s.usage.rescaling_phases, "phase",
    ),
)  # fmt: skip
"""All metrics of jobs, in the order of docs/metrics.md."""


class JobSeries:
    """Computes the series of all jobs at a scrape: linear in the number of jobs, bounded for each."""

    def __init__(self, meters: Callable[[], Sequence[JobMeter]], clock: Callable[[], datetime] | None = None) -> None:
        """``meters`` is called in the scrape's thread."""
        self._meters = meters
        self._clock = clock or time_of_day.now

    def text(self) -> str:
        """In Prometheus' text format."""
        now, phases = self._clock(), dict[str, int]()
        written: list[list[str]] = [[] for _ in METRICS]
        for meter in self._meters():
            found = meter.view
            if found is None:
                continue
            phases[found.phase] = phases.get(found.phase, 0) + 1
            seen = Seen(found, meter.tally, accelerator_seconds.continued(found.usage, now))
            job = f'namespace="{escaped(found.job.namespace)}",job="{escaped(found.job.name)}"'
            for metric, lines in zip(METRICS, written, strict=True):
                lines.extend(metric.lines(job, seen))
        kind, name, documentation, _ = JOBS
        of_phases = [f'{name}{{phase="{phase}"}} {count}\n' for phase, count in sorted(phases.items())]
        families = [(kind, name, documentation, of_phases)]
        families += [(m.kind, m.name, m.documentation, lines) for m, lines in zip(METRICS, written, strict=True)]
        return "".join(f"# HELP {n} {d}\n# TYPE {n} {k}\n{''.join(lines)}" for k, n, d, lines in families)


@lru_cache(maxsize=1024)
def escaped(text: str) -> str:
    """A label's value in the text format."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _by_health(status: JobStatus) -> dict[str, int]:
    counts: dict[str, int] = {}
    for worker in status.unhealthy_workers:
        counts[worker.health] = counts.get(worker.health, 0) + 1
    return counts
