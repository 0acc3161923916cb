"""What a job has measured itself, in the place of the model's constants. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastrain_plan.model import Constants
from elastrain_resource.job import ElasticTrainingJob, JobStatus

ENOUGH = 5
"""Losses from which a mean time between them is taken; fewer say little."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one job; absent figures are None, or missing in ``constants``."""

    cards: int | None
    step: float | None
    """Seconds."""
    constants: Mapping[str, float]
    """Of the last rescale, by the names of :class:`elastrain_plan.model.Constants`."""
    mttf: float | None
    """Accelerator hours for each worker lost to infrastructure; after ``ENOUGH`` losses."""


def measured(job: ElasticTrainingJob) -> Measured:
    """From the status of ``job``. Raises ``ValueError`` if it has none."""
    if job.status is None:
        raise ValueError(f"--from: job {job.name} has no status: it has measured nothing yet. Leave --from out")
    status = job.status
    generation, sizes = status.generation, status.measured_sizes
    return Measured(
        cards=generation.size * job.spec.ranks_per_worker if generation and generation.size else None,
        step=sizes[-1].step_seconds if sizes else None,
        constants=_phases(status),
        mttf=_mttf(status),
    )


def _mttf(status: JobStatus) -> float | None:
    usage, losses = status.accelerator_seconds, status.restarts.infrastructure
    if usage is None or losses < ENOUGH:
        return None
    return (usage.training + usage.rescaling + usage.waiting + usage.redone) / 3600 / losses


def _phases(status: JobStatus) -> dict[str, float]:
    """A planned change connects beside training, and detects nothing. What the job's ranks took to connect is split
    so that the model gives the same at their number, and more ranks take longer as published."""
    rescale = status.last_rescale
    if rescale is None or "detect" not in rescale.phases:
        return {}
    found = {name: seconds for name, seconds in rescale.phases.items() if name in {"detect", "decide"}}
    if "connect" in rescale.phases and rescale.to:
        seconds = rescale.phases["connect"]
        found["per_rank"] = min(Constants().per_rank, seconds / rescale.to)
        found["connect"] = max(0.0, seconds - found["per_rank"] * rescale.to)
    return found
