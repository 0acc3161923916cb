"""The page's view of a job, in JSON form. Pure; ``view`` and ``explain`` interpret the status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elastrain.api.records import PHASES
from elastrain_cli.client import Event, Worker, queued
from elastrain_cli.client import explain as explanations
from elastrain_cli.shell import view
from elastrain_dashboard.timeline import Moment
from elastrain_resource.job import AcceleratorSeconds, ConditionType, ElasticTrainingJob, JobStatus, training_time
from elastrain_resource.sizing.describe import efficiency

EVENTS = 50
"""Shown events of a job, newest first."""
WORKERS = 500
"""Shown workers of a job; workers that do not run take precedence."""

Json = dict[str, Any]


def row(job: ElasticTrainingJob) -> Json:
    """A job's row in the list."""
    status = job.status or JobStatus()
    progress = status.progress
    return {
        "key": f"{job.namespace}/{job.name}",
        "namespace": job.namespace,
        "name": job.name,
        "phase": view.phase_of(job),
        "ready": status.ready_replicas,
        "desired": desired(job),
        "min": job.spec.min_replicas,
        "max": job.spec.max_replicas,
        "step": status.step,
        "of": progress.of if progress else None,
        "loss": progress.loss if progress else None,
        "pace": progress.samples_per_second if progress else None,
        "eta": progress.eta if progress and not status.completion_time else None,
        "goodput": training_time.effective(status.accelerator_seconds),
        "why": why(job),
        "created": job.metadata.get("creationTimestamp"),
    }


def unreadable(body: Mapping[str, Any], text: str) -> Json:
    """The row of a job of another version: its name and the error."""
    meta, status = body["metadata"], body.get("status") or {}
    nothing = dict.fromkeys(
        ("ready", "desired", "min", "max", "step", "of", "loss", "pace", "eta", "goodput"),
    )
    return {
        "key": f"{meta.get('namespace', '')}/{meta.get('name', '')}", "namespace": str(meta.get("namespace", "")),
        "name": str(meta.get("name", "")), "phase": str(status.get("phase") or "Unknown"), **nothing, "why": text,
        "created": meta.get("creationTimestamp"),
    }  # fmt: skip


def desired(job: ElasticTrainingJob) -> int:
    """Desired workers by the operator's decision, else by the spec."""
    decided = job.status.desired_replicas if job.status else None
    return job.spec.desired_replicas if decided is None else decided


def why(job: ElasticTrainingJob) -> str:
    """How the job ended, which condition it waits for, or why it is not larger; empty for a healthy job."""
    grown = next((c for c in (job.status.conditions if job.status else []) if c.type == ConditionType.GROWN), None)
    return view.summary(job) or (grown.message if grown and grown.status == "False" else "")


def detail(
    job: ElasticTrainingJob, workers: Sequence[Worker], events: Iterable[Event], moments: Sequence[Moment]
) -> Json:
    """A job's page, without its values over time."""
    status = job.status or JobStatus()
    waiting_first = sorted(workers, key=lambda w: (w.phase == "Running", w.ordinal))
    return {
        **row(job),
        "queue": queued.queue_of(job),
        "epoch": status.progress.epoch if status.progress else None,
        "samples": status.progress.samples if status.progress else None,
        "effectiveSamples": status.progress.effective_samples if status.progress else None,
        "batch": {**_dump(status.batch), "efficiency": efficiency(status.batch)} if status.batch else None,
        "shares": [_dump(share) for share in status.rank_shares],
        "generation": _dump(status.generation),
        "restarts": _dump(status.restarts),
        "usage": _usage(status.accelerator_seconds),
        "explain": [{"text": r.text, "change": r.change} for r in explanations.explain(job, workers)],
        "conditions": [_dump(c) for c in status.conditions],
        "workers": [_worker(w, status) for w in sorted(waiting_first[:WORKERS], key=lambda w: w.ordinal)],
        "groupSize": job.spec.group_size,
        "workersLeftOut": max(0, len(workers) - WORKERS),
        "excludedNodes": [_dump(n) for n in status.excluded_nodes],
        "lastFailure": _dump(status.last_failure),
        "events": _events(events),
        "rescales": [_rescale(m) for m in reversed(moments)],
    }


def _worker(worker: Worker, status: JobStatus) -> Json:
    unhealthy = next((u for u in status.unhealthy_workers if u.worker == worker.name), None)
    note = ": ".join(filter(None, (worker.reason, worker.message)))
    return {
        "name": worker.name,
        "phase": worker.phase,
        "node": worker.node,
        "started": worker.started.isoformat() if worker.started else None,
        "health": unhealthy.health if unhealthy else "",
        "note": note or (unhealthy.message if unhealthy else ""),
    }


def _rescale(moment: Moment) -> Json:
    known = moment.rescale.phases
    order = [*(p for p in PHASES if p in known), *sorted(known.keys() - set(PHASES))]
    return {
        "time": moment.time.isoformat(),
        "from": moment.rescale.from_,
        "to": moment.rescale.to,
        "reason": moment.rescale.reason,
        "pause": moment.rescale.pause_seconds,
        "lost": moment.rescale.lost_steps,
        "phases": [{"name": name, "seconds": known[name]} for name in order],
    }


def _events(events: Iterable[Event]) -> list[Json]:
    """Newest first."""
    ordered = sorted(events, key=lambda e: e.time.timestamp() if e.time else 0.0, reverse=True)
    return [
        {
            "time": e.time.isoformat() if e.time else None, "type": e.type, "reason": e.reason, "message": e.message,
            "count": e.count,
        }
        for e in ordered[:EVENTS]
    ]  # fmt: skip


def _usage(usage: AcceleratorSeconds | None) -> Json | None:
    if usage is None:
        return None
    return {name: getattr(usage, name) for name in ("training", "rescaling", "waiting", "redone")}


def _dump(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", by_alias=True)
