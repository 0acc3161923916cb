"""A local job at one moment, and as the resource and the workers that a cluster would show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from elastrain.api.records import Generation, Member, Phase, Progress, Target
from elastrain_resource.job import (
    Condition,
    ConditionType,
    ElasticTrainingJob,
    GenerationStatus,
    JobStatus,
    RestartCounts,
    SparesStatus,
    reported,
)
from elastrain_resource.job.shown import Worker


class WorkerStatus(BaseModel):
    """One worker."""

    model_config = ConfigDict(frozen=True)

    name: str
    pid: int
    """Pid of the agent."""
    phase: str
    """``starting`` before the worker registers, then the member's phase, then the outcome."""
    ended: bool = False
    """The agent has exited; ``phase`` is its outcome."""
    node: str = ""
    member: str = ""
    """Member id; empty before registration and after the end."""
    generation: int = 0
    step: int = 0
    restarts: int = 0
    leaving: bool = False
    health: str = ""
    """A value of ``api.records.Health``; empty: healthy."""
    message: str = ""
    """Why the worker ended, or is unhealthy; empty otherwise."""


class LocalStatus(BaseModel):
    """A local job at one moment."""

    model_config = ConfigDict(frozen=True)

    job: str
    phase: str
    """Pending, Running, Rescaling, Draining, Suspended, Succeeded, Stopped or Failed."""
    min: int
    max: int
    desired: int
    spares: int = 0
    """Desired number of warm spares."""
    workers: tuple[WorkerStatus, ...] = ()
    """Workers that run, and ended workers with a message; oldest first."""
    target: Target | None = None
    generation: Generation | None = None
    progress: Progress | None = None
    failures: int = 0
    """Failures of the training script so far."""
    message: str = ""

    @property
    def running(self) -> tuple[WorkerStatus, ...]:
        return tuple(w for w in self.workers if not w.ended)

    @property
    def step(self) -> int | None:
        """The last known committed step: ranks report once a second, and the end of a worker says its last one."""
        last = {m.worker for m in self.generation.members} if self.generation else set()
        known = [w.step for w in self.workers if w.ended and w.name in last]
        return max([*known, *([self.progress.step] if self.progress else [])], default=None)

    @property
    def in_force(self) -> int:
        """Workers of the newest generation that have adopted it. All members adopt together: one report suffices."""
        if self.generation is None:
            return 0
        inside = [w for w in self.workers if self.generation.member(w.member)]
        return len(inside) if any(w.generation == self.generation.number for w in inside) else 0

    @property
    def standing_by(self) -> tuple[str, ...]:
        """The warm spares: ready workers outside of the generation."""
        if not self.spares or not self.desired or self.generation is None or self.generation.size < self.desired:
            return ()
        outside = [w for w in self.running if not self.generation.member(w.member)]
        return tuple(w.name for w in outside if w.phase == Phase.READY and not w.leaving)


def in_generation(generation: Generation | None, members: Iterable[Member]) -> set[str]:
    """Workers whose current incarnation is in ``generation``. A worker with restarted ranks is not."""
    inside = {m.id for m in generation.members} if generation else set()
    return {m.worker for m in members if m.id in inside}


def phase_of(
    *,
    result: str | None,
    stopping: bool,
    desired: int,
    generation: Generation | None,
    members: Mapping[str, Member],
) -> str:
    """The phase of the job; the operator's terms where they exist."""
    if result is not None:
        return {"finished": "Succeeded", "failed": "Failed"}.get(result, "Stopped")
    if stopping:
        return "Draining"
    if desired == 0:
        return "Suspended"
    if generation is None or not generation.members:
        return "Pending"
    alive = [members[m.id] for m in generation.members if m.id in members]
    adopted = any(m.generation == generation.number for m in alive)
    return "Running" if adopted and len(alive) == generation.size == desired else "Rescaling"


def resource(job: ElasticTrainingJob, status: LocalStatus, now: datetime) -> ElasticTrainingJob:
    """``job`` with the status that the operator of a cluster would write, as far as this machine has its facts."""
    generation = status.generation
    progress = status.progress.model_copy(update={"step": status.step}) if status.progress else None
    rescales = [r for r in progress.rescales if r.from_size > 0] if progress else []
    failed = Condition(
        type=ConditionType.FAILED, status="True", reason="Failed", message=status.message,
        last_transition_time=now.isoformat(),
    )  # fmt: skip
    found = JobStatus(
        phase=status.phase,
        conditions=[failed] if status.phase == "Failed" else [],
        replicas=len(status.running),
        desired_replicas=status.desired,
        ready_replicas=status.in_force,
        spares=SparesStatus(ready=len(status.standing_by), desired=status.spares) if status.spares else None,
        generation=GenerationStatus(number=generation.number, size=generation.size, reason=generation.reason)
        if generation
        else None,
        step=status.step,
        progress=reported.progress_status(None, None, progress, now),
        last_rescale=reported.rescale_status(rescales[-1]) if rescales else None,
        batch=reported.batch_status(progress.batch) if progress and progress.batch else None,
        rank_shares=reported.rank_shares(progress.shares) if progress else [],
        restarts=RestartCounts(user=status.failures),
        observed_generation=int(job.metadata.get("generation", 0)),
    )
    written = found.model_dump(mode="json", by_alias=True, exclude_none=True)  # what is unknown is absent
    fixed = {"replicas": status.desired} if job.spec.replicas is not None else {}
    spec = job.spec.model_copy(update=fixed)  # what `elastrain scale` writes there on a cluster
    return job.model_copy(update={"spec": spec, "status": JobStatus.model_validate(written)})


def workers(status: LocalStatus) -> list[Worker]:
    """The workers that run, and those that have failed, as pods of a cluster are shown; the newest twelve."""
    return [_shown(w, status) for w in status.workers if not w.ended or w.phase == "failed"][-12:]


def _shown(worker: WorkerStatus, status: LocalStatus) -> Worker:
    phase = "Failed" if worker.ended else "Running" if worker.member else "Pending"
    state = "stands by" if worker.name in status.standing_by else "" if worker.ended else worker.phase
    again = f"its ranks started again {worker.restarts}×" if worker.restarts else ""
    return Worker(
        name=worker.name,
        ordinal=-1,
        phase="Terminating" if worker.leaving and not worker.ended else phase,
        node=f"{worker.node or 'this machine'}, pid {worker.pid}",
        reason="",
        message=", ".join(filter(None, (state, again, worker.message))),
        started=None,
    )
