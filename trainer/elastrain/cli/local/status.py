"""The status of a local job as one value, for the live view and ``elastrain status``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from elastrain.api.records import Generation, Member, Phase, Progress, Target


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


def eta_seconds(progress: Progress) -> float | None:
    """Seconds until the last step at the present rate; None: unknown."""
    if progress.total_steps is None or progress.step_seconds is None:
        return None
    return max(0, progress.total_steps - progress.step) * progress.step_seconds


def samples_per_second(earlier: tuple[float, Progress] | None, later: tuple[float, Progress]) -> float | None:
    """Samples per second between two progress records, each with its time."""
    if earlier is None or later[0] <= earlier[0]:
        return None
    return max(0.0, (later[1].samples - earlier[1].samples) / (later[0] - earlier[0]))


def to_json(status: LocalStatus) -> dict[str, Any]:
    """A status as ``elastrain status -o json`` prints it."""
    return status.model_dump(mode="json", exclude_none=True)
