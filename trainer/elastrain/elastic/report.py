"""What rank 0 reports: progress at most once a second, and how each rescale went."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastrain.api.records import CheckpointState, Generation, Progress, Rescale

REPORT_SECONDS = 1.0
KEPT_RESCALES = 10
_SMOOTHING = 0.1
"""Weight of the newest step in the smoothed step time."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of generation that has been entered and waits for its first step."""

    generation: Generation
    from_size: int
    step: int
    lost_steps: int
    since: float
    """Monotonic time of the last committed step before it, or of the start."""
    entered: float
    phases: dict[str, float]


@dataclass(slots=True)
class Reporter:
    """Collects figures step by step; ``now`` is monotonic seconds and always passed in."""

    rescales: list[Rescale] = field(default_factory=list)
    loss: float | None = None
    step_seconds: float | None = None
    _last_commit: float | None = None
    _last_report: float = float("-inf")
    _switch: Switch | None = None

    def entered(self, switch: Switch) -> None:
        self._switch = switch

    @property
    def last_commit(self) -> float | None:
        """When this rank last committed a step; None before the first."""
        return self._last_commit

    def committed(self, now: float, loss: float) -> None:
        """A step was committed."""
        if self._switch is not None:
            s, self._switch = self._switch, None
            self.rescales.append(
                Rescale(
                    generation=s.generation.number,
                    from_size=s.from_size,
                    to_size=s.generation.world_size,
                    reason=s.generation.reason,
                    step=s.step,
                    pause_seconds=round(now - s.since, 4),
                    lost_steps=s.lost_steps,
                    phases={**s.phases, "first_step": round(now - s.entered, 4)},
                )
            )
            del self.rescales[:-KEPT_RESCALES]
            self._last_report = float("-inf")
        elif self._last_commit is not None:
            took = now - self._last_commit
            old = self.step_seconds
            self.step_seconds = took if old is None else old + _SMOOTHING * (took - old)
        self._last_commit, self.loss = now, loss

    def due(self, now: float) -> bool:
        """Whether a report is due; if so it counts as made."""
        if now - self._last_report < REPORT_SECONDS:
            return False
        self._last_report = now
        return True

    def progress(
        self,
        generation: Generation,
        *,
        step: int,
        total_steps: int | None,
        epoch: int,
        samples: int,
        checkpoint: CheckpointState | None,
    ) -> Progress:
        return Progress(
            generation=generation.number,
            world_size=generation.world_size,
            members=len(generation.members),
            step=step,
            total_steps=total_steps,
            epoch=epoch,
            samples=samples,
            loss=self.loss,
            step_seconds=self.step_seconds,
            rescales=tuple(self.rescales),
            checkpoint=checkpoint,
        )
