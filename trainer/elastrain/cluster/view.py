"""Jobs of a cluster as a person reads them. Pure, ``now`` is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from elastrain.api.job import ConditionType, ElasticTrainingJob, JobStatus, LastRescale
from elastrain.client import Event, Worker
from elastrain.client.records import time_of

PHASE_STYLES = {
    "Running": "green", "Succeeded": "green", "Rescaling": "yellow", "Pending": "yellow", "Suspended": "yellow",
    "Failed": "red",
}  # fmt: skip
_EVENTS = 6


def age(since: datetime | None, now: datetime) -> str:
    """How long ago, as kubectl says it: 45s, 12m, 3h, 6d; nothing where it is not known."""
    if since is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def phase_of(job: ElasticTrainingJob) -> str:
    """One word; a job that no operator has looked at yet is Pending, too."""
    return (job.status.phase if job.status else None) or "Pending"


def size_of(job: ElasticTrainingJob) -> str:
    """Workers that train and that are wanted: ``2/4``."""
    status = job.status or JobStatus()
    wanted = status.desired_replicas if status.desired_replicas is not None else job.spec.desired_replicas
    return f"{status.ready_replicas}/{wanted}"


def spares_of(job: ElasticTrainingJob) -> str:
    """Warm spares that are ready and that are wanted: ``1/2``; empty where none are asked for."""
    found = job.status.spares if job.status else None
    return f"{found.ready}/{found.desired}" if found else ""


def rescale_line(rescale: LastRescale) -> str:
    """The last rescale in one line."""
    phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in rescale.phases.items())
    lost = f", {rescale.lost_steps} steps lost" if rescale.lost_steps else ""
    return (
        f"{rescale.reason} {rescale.from_}→{rescale.to} ranks: {rescale.pause_seconds:.2f} s pause{lost}"
        f"{f' ({phases})' if phases else ''}"
    )


def table(jobs: Iterable[ElasticTrainingJob], now: datetime, *, namespaces: bool, wide: bool) -> Table:
    """One line a job."""
    shown = Table(box=None, header_style="dim", padding=(0, 3, 0, 0))
    columns = (["NAMESPACE"] if namespaces else []) + ["NAME", "PHASE", "WORKERS", "STEP", "PAUSE", "AGE"]
    for column in columns + (["MIN", "MAX", "GENERATION", "RESTARTS", "WHY"] if wide else []):
        shown.add_column(column, no_wrap=column != "WHY")
    for job in jobs:
        status = job.status or JobStatus()
        rescale, generation, restarts = status.last_rescale, status.generation, status.restarts
        cells: list[str | Text] = [job.namespace] if namespaces else []
        cells += [
            job.name,
            Text(phase_of(job), style=PHASE_STYLES.get(phase_of(job), "")),
            size_of(job),
            "" if status.step is None else str(status.step),
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
                Text(standing(job)),
            ]
        shown.add_row(*cells)
    return shown


def standing(job: ElasticTrainingJob) -> str:
    """The sentence that matters most: how it ended, or what it waits for; empty where all is well."""
    conditions = {c.type: c for c in (job.status.conditions if job.status else [])}
    for kind in (ConditionType.FAILED, ConditionType.SUCCEEDED, ConditionType.SUSPENDED):
        if kind in conditions and conditions[kind].status == "True":
            return conditions[kind].message
    for kind in (ConditionType.COORDINATION_AVAILABLE, ConditionType.PODS_READY, ConditionType.CHECKPOINT_HEALTHY):
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
        f"  {size_of(job)} workers (min {job.spec.min_replicas}, max {job.spec.max_replicas})",
    )  # fmt: skip
    if spares := spares_of(job):
        head.append(f"  spares {spares}")
    if status.step is not None:
        head.append(f"  step {status.step}")
    if status.generation is not None:
        head.append(f"  generation {status.generation.number} ({status.generation.reason})")
    parts: list[RenderableType] = [head]
    if why := standing(job):
        parts.append(Text(f"  {why}", style=PHASE_STYLES.get(phase_of(job), "yellow")))
    if status.last_rescale is not None:
        parts.append(Text(f"  last rescale: {rescale_line(status.last_rescale)}", style="dim"))
    if workers:
        parts += [Text(""), _workers(workers, now)]
    if events:
        parts += [Text(""), _events(events[-_EVENTS:], now)]
    return Group(*parts)


def _workers(workers: Sequence[Worker], now: datetime) -> Table:
    shown = Table(box=None, header_style="dim", padding=(0, 3, 0, 0))
    for column in ("WORKER", "POD", "NODE", "AGE", "WHY"):
        shown.add_column(column, no_wrap=column != "WHY")
    for w in workers:
        style = {"Running": "green", "Failed": "red"}.get(w.phase, "yellow")
        why = ": ".join(filter(None, (w.reason, w.message)))
        shown.add_row(w.name, Text(w.phase, style=style), w.node, age(w.started, now), Text(why))
    return shown


def _events(events: Sequence[Event], now: datetime) -> Table:
    shown = Table(box=None, header_style="dim", padding=(0, 3, 0, 0))
    for column in ("AGO", "EVENT", "MESSAGE"):
        shown.add_column(column, no_wrap=column != "MESSAGE")
    for e in events:
        style = "yellow" if e.type == "Warning" else ""
        shown.add_row(age(e.time, now), Text(e.reason, style=style), Text(e.message))
    return shown
