"""Metrics of the jobs that this operator serves, computed at each scrape from the last observation of their loops.

No series are stored: those of a deleted job end with its loop. Between scrapes the cost is one small value per job and
pass. The text is written line by line: Prometheus' client library needs ten times as long for it, which matters with
thousands of jobs (docs/metrics.md).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import accumulate

from elastrain.api.job import AcceleratorSeconds, JobStatus, LastRescale, RestartCounts, SparesStatus
from elastrain.api.job.status import BatchStatus
from elastrain.api.records import Progress, Rescale
from elastrain_operator import clock as time_of_day
from elastrain_operator.model import JobRef, Observed
from elastrain_operator.policy.report import accelerator_seconds, pace

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
    effective_samples: int | None
    usage: AcceleratorSeconds


def view(job: JobRef, status: JobStatus, report: Progress | None, usage: AcceleratorSeconds) -> JobView:
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
        total_steps=report.total_steps if report else None,
        samples_per_second=(pace.samples_per_second(report) or 0.0) if report and trains else 0.0,
        remaining_seconds=pace.eta_seconds(report) if report and trains else None,
        restarts=status.restarts,
        conditions=tuple((c.type, _TRUTH[c.status]) for c in status.conditions if c.status in _TRUTH),
        unhealthy=_by_health(status),
        last_rescale=status.last_rescale,
        spares=status.spares,
        batch=status.batch,
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
        before: AcceleratorSeconds | None,
        usage: AcceleratorSeconds | None,
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


class JobSeries:
    """Computes the series of all jobs at a scrape: linear in the number of jobs, bounded for each."""

    def __init__(self, meters: Callable[[], Sequence[JobMeter]], clock: Callable[[], datetime] | None = None) -> None:
        """``meters`` is called in the scrape's thread."""
        self._meters = meters
        self._clock = clock or time_of_day.now

    def text(self) -> str:
        """In Prometheus' text format."""
        families, now = Families(), self._clock()
        phases: dict[str, int] = {}
        for meter in self._meters():
            if meter.view is not None:
                families.add(meter.view, meter.tally, now)
                phases[meter.view.phase] = phases.get(meter.view.phase, 0) + 1
        for phase, count in sorted(phases.items()):
            families.jobs.add(f'phase="{phase}"', count)
        return "".join(family.text() for family in families.all())


class Family:
    """A metric and its samples."""

    def __init__(self, kind: str, name: str, documentation: str, labels: Sequence[str]) -> None:
        """``name`` as in queries: a counter's with ``_total``, a histogram's without a suffix."""
        self.kind, self.name, self.documentation, self.labels = kind, name, documentation, tuple(labels)
        self._lines: list[str] = []

    def add(self, job: str, value: float, last: str | None = None) -> None:
        """``job``: labels as text; ``last``: value of the last label, if ``job`` does not contain it."""
        more = "" if last is None else f',{self.labels[-1]}="{escaped(last)}"'
        self._lines.append(f"{self.name}{{{job}{more}}} {value}\n")

    def add_histogram(self, job: str, buckets: Sequence[tuple[str, int]], total: float) -> None:
        for bound, count in buckets:
            self._lines.append(f'{self.name}_bucket{{{job},le="{bound}"}} {count}\n')
        self._lines.append(f"{self.name}_sum{{{job}}} {total}\n{self.name}_count{{{job}}} {buckets[-1][1]}\n")

    def text(self) -> str:
        return f"# HELP {self.name} {self.documentation}\n# TYPE {self.name} {self.kind}\n" + "".join(self._lines)


@lru_cache(maxsize=1024)
def escaped(text: str) -> str:
    """A label's value in the text format."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Group:
    """Metric families that are filled together, as attributes; one of them can be a group again."""

    def all(self) -> list[Family]:
        parts = vars(self).values()
        return [family for part in parts for family in (part.all() if isinstance(part, _Group) else (part,))]


class _Size(_Group):
    """How many workers the job wants and has."""

    def __init__(self) -> None:
        self.wanted = _gauge("elastrain_job_replicas_wanted", "Desired replicas: workers, or groups of several.")
        self.existing = _gauge(
            "elastrain_job_replicas", "Replicas whose pods exist and have not ended, without warm spares."
        )
        self.ready = _gauge("elastrain_job_replicas_ready", "Replicas in the current generation.")
        self.spares_wanted = _gauge(
            "elastrain_job_spares_wanted", "Desired number of warm spares. Absent without warmSpares."
        )
        self.spares_ready = _gauge("elastrain_job_spares_ready", "Warm spares that are ready to train.")
        self.generation = _gauge("elastrain_job_generation", "Number of the current generation.")
        self.world = _gauge("elastrain_job_world_size", "Ranks in the current generation; 0 without one.")

    def add(self, job: str, seen: JobView) -> None:
        self.wanted.add(job, seen.wanted)
        self.existing.add(job, seen.existing)
        self.ready.add(job, seen.ready)
        if seen.spares is not None:
            self.spares_wanted.add(job, seen.spares.desired)
            self.spares_ready.add(job, seen.spares.ready)
        self.generation.add(job, seen.generation)
        self.world.add(job, seen.world_size)


class _Progress(_Group):
    """How far the job is, and how fast."""

    def __init__(self) -> None:
        self.step = _gauge("elastrain_job_step", "Committed steps: the job's position. Decreases if steps are lost.")
        self.total = _gauge("elastrain_job_target_steps", "Committed steps at which the job will be complete.")
        self.steps = _counter("elastrain_job_steps_total", "Committed steps, including repeated ones. Never decreases.")
        self.samples = _gauge(
            "elastrain_job_samples_per_second", "Samples per second, from undisturbed steps; 0 without a generation."
        )
        self.remaining = _gauge("elastrain_job_remaining_seconds", "Time for the remaining steps at that rate.")

    def add(self, job: str, seen: JobView) -> None:
        self.step.add(job, seen.step)
        self.steps.add(job, seen.step + seen.usage.redone_steps)
        self.samples.add(job, seen.samples_per_second)
        if seen.total_steps is not None:
            self.total.add(job, seen.total_steps)
        if seen.remaining_seconds is not None:
            self.remaining.add(job, seen.remaining_seconds)


class _Batch(_Group):
    """Of a job with ``spec.batch``."""

    def __init__(self) -> None:
        self.samples = _gauge(
            "elastrain_job_batch_samples", "Samples of a step, as the ranks have chosen. Absent without spec.batch."
        )
        self.noise = _gauge(
            "elastrain_job_batch_noise_scale", "Noise scale of the gradients in samples. Absent before it is measured."
        )
        self.efficiency = _gauge(
            "elastrain_job_batch_efficiency", "What a sample is worth in this batch, in samples of the script's batch."
        )
        self.gain = _gauge(
            "elastrain_job_batch_larger_gain",
            "Predicted gain of goodput by the next larger batch, as a part. Absent at the largest.",
        )
        self.effective = _gauge(
            "elastrain_job_effective_samples",
            "Progress: samples of the committed steps, each by what it was worth. Absent without spec.batch.",
        )

    def add(self, job: str, seen: JobView) -> None:
        if seen.batch is None:
            return
        self.samples.add(job, seen.batch.samples)
        if seen.batch.noise_scale is not None:
            self.noise.add(job, seen.batch.noise_scale)
        if seen.batch.efficiency is not None:
            self.efficiency.add(job, seen.batch.efficiency)
        if seen.batch.larger is not None:
            self.gain.add(job, seen.batch.larger.gain)
        if seen.effective_samples is not None:
            self.effective.add(job, seen.effective_samples)


class _Rescales(_Group):
    """Rescales since the operator's start, and the last one. Most of a job's series, so only if it has had one."""

    def __init__(self) -> None:
        self.by_reason = _counter(
            "elastrain_job_rescales_total",
            "Changes of the generation, by reason, since the operator's start.",
            _of("reason"),
        )
        self.pause = Family(
            "histogram",
            "elastrain_job_rescale_pause_seconds",
            "Time from the last committed step before a rescale to the first one after it, since the operator's start.",
            _of(),
        )
        self.last_pause = _gauge("elastrain_job_last_rescale_pause_seconds", "Pause of the last rescale.")
        self.last_phase = _gauge(
            "elastrain_job_last_rescale_phase_seconds",
            "Phases of the last rescale: detect, decide, connect (in a planned rescale: in parallel with training), "
            "transfer (in parallel with the first step), first_step (the remainder of the first step).",
            _of("phase"),
        )

    def add(self, job: str, last: LastRescale | None, tally: Tally) -> None:
        if tally.by_reason:
            for reason, count in sorted(tally.by_reason.items()):
                self.by_reason.add(job, count, reason)
            self.pause.add_histogram(job, tally.buckets(), tally.pause_sum)
        if last is not None:
            self.last_pause.add(job, last.pause_seconds)
            for phase, seconds in last.phases.items():
                self.last_phase.add(job, seconds, phase)


class Families(_Group):
    """All metric families of jobs. Each has the labels ``namespace`` and ``job``, except the number of jobs."""

    def __init__(self) -> None:
        self.jobs = Family("gauge", "elastrain_operator_jobs", "Jobs that this operator manages.", ["phase"])
        self.phase = _gauge("elastrain_job_phase", "1 for the current phase of the job.", _of("phase"))
        self.condition = _gauge(
            "elastrain_job_condition",
            "1 if the condition is True, 0 if it is False. Absent if it is Unknown.",
            _of("type"),
        )
        self.size, self.progress, self.batch, self.rescales = _Size(), _Progress(), _Batch(), _Rescales()
        self.restarts = _counter("elastrain_job_restarts_total", "Replaced workers, by cause.", _of("cause"))
        self.unhealthy = _gauge(
            "elastrain_job_unhealthy_workers", "Workers that delay the others, by health: slow, stuck.", _of("health")
        )
        self.held = _gauge("elastrain_job_accelerators", "Accelerators held by the job's pods.")
        self.seconds = _counter(
            "elastrain_job_accelerator_seconds_total",
            "Accelerator seconds held by the job's pods, by use: training, rescaling, waiting, redone, spare.",
            _of("use"),
        )

    def add(self, seen: JobView, tally: Tally, now: datetime) -> None:
        """The series of one job."""
        job = f'namespace="{escaped(seen.job.namespace)}",job="{escaped(seen.job.name)}"'
        self.phase.add(job, 1, seen.phase)
        for kind, truth in seen.conditions:
            self.condition.add(job, truth, kind)
        self.size.add(job, seen)
        self.progress.add(job, seen)
        self.batch.add(job, seen)
        self.rescales.add(job, seen.last_rescale, tally)
        for cause in ("user", "infrastructure", "preemption"):
            self.restarts.add(job, getattr(seen.restarts, cause), cause)
        for health in ("slow", "stuck"):
            self.unhealthy.add(job, seen.unhealthy.get(health, 0), health)
        usage = accelerator_seconds.continued(seen.usage, now)
        self.held.add(job, usage.held)
        for use in ("training", "rescaling", "waiting", "redone", "spare"):
            self.seconds.add(job, getattr(usage, use), use)


def _of(*more: str) -> list[str]:
    return ["namespace", "job", *more]


def _gauge(name: str, documentation: str, labels: list[str] | None = None) -> Family:
    return Family("gauge", name, documentation, _of() if labels is None else labels)


def _counter(name: str, documentation: str, labels: list[str] | None = None) -> Family:
    return Family("counter", name, documentation, _of() if labels is None else labels)


def _by_health(status: JobStatus) -> dict[str, int]:
    counts: dict[str, int] = {}
    for worker in status.unhealthy_workers:
        counts[worker.health] = counts.get(worker.health, 0) + 1
    return counts
