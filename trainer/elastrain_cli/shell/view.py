"""Formats jobs for the terminal, of a cluster and of this machine alike. Pure; ``now`` is a parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elastrain_resource.job import (
    ConditionType,
    ElasticTrainingJob,
    JobStatus,
    LastFailure,
    LastRescale,
    ProgressStatus,
    training_time,
)
from elastrain_resource.job.shown import Event, Worker, time_of
from elastrain_resource.sizing.describe import batch_line, shares_line

PHASE_STYLES = {
    "Running": "green", "Succeeded": "green", "Rescaling": "yellow", "Pending": "yellow", "Suspended": "yellow",
    "Draining": "yellow", "Failed": "red",
}  # fmt: skip
UNSEEN_SECONDS = 10.0
"""A running operator observes a new job well within this time."""
_EVENTS = 6
_TAIL = 8
"""Last lines of a failed rank."""


def age(since: datetime | None, now: datetime) -> str:
    """Time since ``since`` in kubectl's form: 45s, 12m, 3h, 6d; empty if unknown."""
    if since is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def phase_of(job: ElasticTrainingJob) -> str:
    """The phase in one word; Pending also for a job without a status."""
    return (job.status.phase if job.status else None) or "Pending"


def size_of(job: ElasticTrainingJob) -> str:
    """Training and desired workers: ``2/4``."""
    status = job.status or JobStatus()
    desired = status.desired_replicas if status.desired_replicas is not None else job.spec.desired_replicas
    return f"{status.ready_replicas}/{desired}"


def spares_of(job: ElasticTrainingJob) -> str:
    """Ready and desired warm spares: ``1/2``; empty if the job requests none."""
    found = job.status.spares if job.status else None
    return f"{found.ready}/{found.desired}" if found else ""


def unobserved(job: ElasticTrainingJob, now: datetime) -> str:
    """A notice if no operator has observed the job or its last change; empty if one has, or the job is too new to
    judge."""
    status = job.status or JobStatus()
    if status.observed_generation is None:
        since = time_of(job.metadata.get("creationTimestamp"))
        if since is None or (now - since).total_seconds() < UNSEEN_SECONDS:
            return ""
        return f"no operator has observed the job for {age(since, now)}; elastrain doctor names the cause"
    if status.completion_time is None and int(job.metadata.get("generation", 0)) > status.observed_generation:
        return "the operator has not observed the last change yet; if this persists: elastrain doctor"
    return ""


def rescale_line(rescale: LastRescale) -> str:
    """The last rescale in one line."""
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in rescale.phases.items())
    lost = f", {rescale.lost_steps} steps lost" if rescale.lost_steps else ""
    return (
        f"{rescale.reason} {rescale.from_}→{rescale.to} ranks: {rescale.pause_seconds:.2f} s pause{lost}"
        f"{f' ({phases})' if phases else ''}"
    )


def table(jobs: Iterable[ElasticTrainingJob], now: datetime, *, namespaces: bool, wide: bool) -> Table:
    """A table with one line for each job."""
    shown = _table((["NAMESPACE"] if namespaces else []) + ["NAME", "PHASE", "WORKERS", "STEP", "PAUSE", "AGE"])
    for column in ["MIN", "MAX", "GENERATION", "RESTARTS", "WHY"] if wide else []:
        shown.add_column(column, no_wrap=column != "WHY")
    for job in jobs:
        status = job.status or JobStatus()
        rescale, generation, restarts = status.last_rescale, status.generation, status.restarts
        cells: list[str | Text] = [job.namespace] if namespaces else []
        cells += [
            job.name,
            Text(phase_of(job), style=PHASE_STYLES.get(phase_of(job), "")),
            size_of(job),
            "" if status.step is None else _step(status),
            "" if rescale is None else f"{rescale.pause_seconds:.2f} s",
            age(time_of(job.metadata.get("creationTimestamp")), now),
        ]
        if wide:
            total = restarts.user + restarts.infrastructure + restarts.preemption
            cells += [
                str(job.spec.min_replicas),
                str(job.spec.max_replicas),
                f"{generation.number} ({generation.reason})" if generation else "",
                str(total or ""),
                Text(summary(job, now)),
            ]
        shown.add_row(*cells)
    return shown


def _step(status: JobStatus) -> str:
    total = status.progress.of if status.progress else None
    return f"{status.step}/{total}" if total else str(status.step)


def summary(job: ElasticTrainingJob, now: datetime | None = None) -> str:
    """The most important sentence: how the job ended, or which condition it waits for; empty for a healthy job.

    Without ``now`` the sentence leaves an absent operator out.
    """
    conditions = {c.type: c for c in (job.status.conditions if job.status else [])}
    for kind in (ConditionType.FAILED, ConditionType.SUCCEEDED):
        if kind in conditions and conditions[kind].status == "True":
            return conditions[kind].message
    if now is not None and (found := unobserved(job, now)):
        return found
    if ConditionType.SUSPENDED in conditions and conditions[ConditionType.SUSPENDED].status == "True":
        return conditions[ConditionType.SUSPENDED].message
    unmet = (
        ConditionType.COORDINATION_AVAILABLE, ConditionType.PODS_READY, ConditionType.WORKERS_HEALTHY,
        ConditionType.CHECKPOINT_HEALTHY,
    )  # fmt: skip
    for kind in unmet:
        if kind in conditions and conditions[kind].status == "False":
            return conditions[kind].message
    return ""


def details(
    job: ElasticTrainingJob, workers: Sequence[Worker], events: Sequence[Event], now: datetime
) -> RenderableType:
    """Everything about one job on a screen."""
    status = job.status or JobStatus()
    head = Text.assemble(
        (job.name, "bold"), "  ", (phase_of(job), PHASE_STYLES.get(phase_of(job), "")),
        f"  {size_of(job)} {job.spec.replica}s (min {job.spec.min_replicas}, max {job.spec.max_replicas})",
    )  # fmt: skip
    if spares := spares_of(job):
        head.append(f"  spares {spares}")
    if status.step is not None and status.progress is None:
        head.append(f"  step {status.step}")
    if status.generation is not None:
        head.append(f"  generation {status.generation.number} ({status.generation.reason})")
    parts: list[RenderableType] = [head]
    if status.progress is not None:
        parts.append(_progress(status.step, status.progress, now))
    parts += _of_batch(status)
    if why := summary(job, now):
        style = "green" if phase_of(job) == "Succeeded" else "red" if phase_of(job) == "Failed" else "yellow"
        parts.append(_indented(why, style))
    if not_larger := why_not_larger(status):
        parts.append(_indented(f"why not larger: {not_larger}", "dim"))
    if status.last_rescale is not None:
        parts.append(_indented(f"last rescale: {rescale_line(status.last_rescale)}", "dim"))
    if status.accelerator_seconds and (paid := training_time.in_words(status.accelerator_seconds)):
        parts.append(_indented(paid, "dim"))
    lines = failure_lines(job, now)
    if not lines and status.last_failure is not None:
        lines = [_lost(status.last_failure, now, "dim")]
    parts += lines
    if workers:
        parts += [Text(""), _workers(workers, now)]
    if events:
        parts += [Text(""), _events(events[-_EVENTS:], now)]
    return Group(*parts)


def _of_batch(status: JobStatus) -> list[RenderableType]:
    """The batch that the ranks have chosen, and their shares of it."""
    lines = [batch_line(status.batch)] if status.batch is not None else []
    lines += [shares_line(status.rank_shares)] if status.rank_shares else []
    return [_indented(line, "dim") for line in lines]


def why_not_larger(status: JobStatus) -> str:
    """Why the operator gives the job no more workers; empty if the job is at its largest, or its size is fixed."""
    grown = next((c for c in status.conditions if c.type == ConditionType.GROWN), None)
    return grown.message if grown is not None and grown.status == "False" else ""


def position_of(job: ElasticTrainingJob) -> str:
    """Step and loss as the end of a sentence; empty if both are unknown."""
    status = job.status or JobStatus()
    lines = ["" if status.step is None else f"step {status.step}", _loss(status.progress)]
    return "".join(f", {word}" for word in lines if word)


def _loss(progress: ProgressStatus | None) -> str:
    """The loss with four digits; empty if the script reports none."""
    return "" if progress is None or progress.loss is None else f"loss {progress.loss:.4g}"


def _effective(progress: ProgressStatus) -> str:
    """What the samples were worth; empty without ``spec.batch``."""
    if progress.effective_samples is None or progress.samples is None:
        return ""
    return f"{progress.samples:,} samples worth {progress.effective_samples:,}"


def progress_line(step: int | None, progress: ProgressStatus, now: datetime) -> str:
    """The progress of training in one line."""
    eta = time_of(progress.eta)
    lines = [
        f"step {step}/{progress.of}" if progress.of else f"step {step}",
        f"epoch {progress.epoch}",
        _loss(progress),
        _effective(progress),
        "" if progress.samples_per_second is None else f"{progress.samples_per_second:,.0f} samples/s",
        "" if eta is None else f"{_duration((eta - now).total_seconds())} left",
    ]
    return ", ".join(filter(None, lines))


def _progress(step: int | None, progress: ProgressStatus, now: datetime) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0))
    cells: list[RenderableType] = [Text(progress_line(step, progress, now))]
    if progress.of:
        cells.insert(0, ProgressBar(total=float(progress.of), completed=float(step or 0), width=24))
    line.add_row("", *cells)
    return line


def _indented(lines: str, style: str) -> Padding:
    """A wrapped and indented sentence below the headline."""
    return Padding(Text(lines, style=style), (0, 0, 0, 2), expand=False)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def failure_lines(job: ElasticTrainingJob, now: datetime) -> list[RenderableType]:
    """For a failed job: the lost worker and its last lines; empty otherwise."""
    failure = job.status.last_failure if job.status else None
    if failure is None or phase_of(job) != "Failed":
        return []
    tail = failure.log_tail.splitlines()[-_TAIL:]
    return [_lost(failure, now, "red"), *(Text(f"    {line}", style="dim") for line in tail)]


def _lost(failure: LastFailure, now: datetime, style: str) -> RenderableType:
    """The newest lost worker and the reason."""
    who = failure.worker if failure.rank is None else f"rank {failure.rank} in {failure.worker}"
    ago = age(time_of(failure.time), now)
    lines = f"last failure: {f'{ago} ago, ' if ago else ''}{who}: {failure.reason}: {failure.message}".rstrip(": ")
    return _indented(lines, style)


def _workers(workers: Sequence[Worker], now: datetime) -> Table:
    shown = _table(["WORKER", "POD", "NODE", "AGE", "WHY"])
    for w in workers:
        style = {"Running": "green", "Failed": "red"}.get(w.phase, "yellow")
        why = ": ".join(filter(None, (w.reason, w.message)))
        shown.add_row(w.name, Text(w.phase, style=style), w.node, age(w.started, now), Text(why))
    return shown


def _events(events: Sequence[Event], now: datetime) -> Table:
    shown = _table(["AGO", "EVENT", "MESSAGE"])
    for e in events:
        style = "yellow" if e.type == "Warning" else ""
        shown.add_row(age(e.time, now), Text(e.reason, style=style), Text(e.message))
    return shown


def _table(columns: Iterable[str]) -> Table:
    """A table for narrow terminals: wraps sentences and folds names without cutting them, so that names can be
    copied."""
    shown = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        folds = column in {"NAME", "NAMESPACE", "WORKER", "NODE", "EVENT", "WHY", "MESSAGE"}
        shown.add_column(column, no_wrap=not folds, overflow="fold" if folds else "ellipsis")
    return shown
