"""What rank 0 reports: progress, at most once a second, with the phases of each rescale, which are also its traces."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastrain import tracing
from elastrain.api import names
from elastrain.api.batch import RankShare
from elastrain.api.loops import LoopId
from elastrain.api.records import CheckpointState, Generation, Progress, Rescale
from elastrain.data.order import Order
from elastrain.elastic.batching import ScriptsBatch
from elastrain.tracing import ROOT, Attribute, Span, Tracer

REPORT_SECONDS = 1.0
KEPT_RESCALES = 10
_SMOOTHING = 0.1
"""Weight of the newest step in the smoothed step time."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a rank's way into a generation; monotonic seconds."""

    last_commit: float | None
    """Of the step before it; None for a joiner, which cannot tell how long the others have paused."""
    broken: float | None
    """When this rank found the previous generation broken; None for a planned change."""
    heard: float
    """When the agent proposed the new generation."""
    connected: float
    entered: float
    """When the rank began to exchange state, at a step boundary."""
    synchronised: float

    @property
    def since(self) -> float:
        """The beginning of the pause."""
        return self.entered if self.last_commit is None else self.last_commit

    def intervals(self, first_commit: float) -> dict[str, tuple[float, float]]:
        """Beginning and end by phase. They add up to the pause, except for small gaps.

        In a planned change the ranks connect while training goes on: ``connect`` is then no part of the pause, and
        ``detect`` and ``decide`` are missing.
        """
        connecting = self.heard if self.broken is None else max(self.heard, self.broken)
        lost = {} if self.broken is None else {"detect": (self.since, self.broken), "decide": (self.broken, connecting)}
        return {
            **lost,
            "connect": (connecting, self.connected),
            "transfer": (self.entered, self.synchronised),
            "first_step": (self.synchronised, first_commit),
        }

    def phases(self, first_commit: float) -> dict[str, float]:
        """Seconds by phase."""
        found = self.intervals(first_commit).items()
        return {name: round(max(0.0, end - begin), 4) for name, (begin, end) in found}


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of generation that has been entered and has not committed its first step."""

    generation: Generation
    rank: int
    """Of this process in it."""
    from_size: int
    step: int
    lost_steps: int
    times: Times


@dataclass(slots=True)
class Reporter:
    """Collects figures step by step; ``now`` is monotonic seconds and always passed in."""

    rescales: list[Rescale] = field(default_factory=list)
    loss: float | None = None
    step_seconds: float | None = None
    batch: ScriptsBatch = field(default_factory=ScriptsBatch)
    audit_error: str = ""
    """As of :attr:`elastrain.data.audit.AuditLog.error`."""
    tracer: Tracer | None = None
    """Receives the spans of each change of generation, if this is rank 0."""
    broken_at: float | None = None
    """When this rank found its last generation broken; None in a healthy one."""
    _last_commit: float | None = None
    _in_loop: bool = False
    """Whether the time since the last commit is that of a step."""
    _last_report: float = float("-inf")
    _switch: Switch | None = None
    _resized: bool = False
    """``step_seconds`` is that of another number of ranks, or of another batch: the next step replaces it."""
    _factor: int = 1
    """Batches of the script in a step."""

    def state(self) -> dict[str, Any]:
        """What joiners and checkpoints receive."""
        return {
            "loss": self.loss,
            "rescales": [r.model_dump() for r in self.rescales],
            "batch": self.batch.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on with ``state``."""
        self.loss = state["loss"]
        self.rescales = [Rescale.model_validate(r) for r in state["rescales"]]
        self.batch.load(state["batch"])

    def times(
        self, heard: float | None, connected: float, entered: float, synchronised: float, *, between: bool
    ) -> Times:
        """Of the way into a generation. ``heard``: of its proposal, if that is known. ``between``: from code between
        two steps, whose time is no pause."""
        broken, self.broken_at = self.broken_at, None
        since = broken if between else self._last_commit
        return Times(since, broken, heard or connected, connected, entered, synchronised)

    def entered(self, switch: Switch) -> None:
        self._switch = switch

    def transferred(self, at: float) -> None:
        """The joiners have received their state while the first step was computed."""
        if self._switch is not None and at > self._switch.times.synchronised:
            self._switch = replace(self._switch, times=replace(self._switch.times, synchronised=at))

    def committed(self, now: float, loss: float, span: int = 1) -> None:
        """A step was committed. ``span``: batches of the script that it took."""
        switched = self.resumed(now)
        self._in_loop &= span == self.batch.factor  # not shorter than the others
        self._resized |= self._factor != self.batch.factor
        self._factor = self.batch.factor
        if not switched and self._last_commit is not None and self._in_loop:
            took = now - self._last_commit
            old = None if self._resized else self.step_seconds
            self.step_seconds, self._resized = took if old is None else old + _SMOOTHING * (took - old), False
        self._last_commit, self.loss, self._in_loop = now, loss, True

    def left_loop(self) -> None:
        """The next commit comes after code of the script that is no step."""
        self._in_loop = False

    def resumed(self, now: float) -> bool:
        """The ranks continue in the generation that was entered last; returns whether they had not done so before."""
        if self._switch is None:
            return False
        s, self._switch = self._switch, None
        self._resized = self._resized or s.from_size != s.generation.world_size
        self.rescales.append(
            Rescale(
                generation=s.generation.number,
                from_size=s.from_size,
                to_size=s.generation.world_size,
                reason=s.generation.reason,
                step=s.step,
                pause_seconds=round(now - s.times.since, 4),
                lost_steps=s.lost_steps,
                phases=s.times.phases(now),
            )
        )
        del self.rescales[:-KEPT_RESCALES]
        if self.tracer is not None and s.rank == 0:
            self.tracer.emit(os.environ.get(names.ENV_JOB_UID, ""), s.generation.number, *spans(s, now))
        self._last_report = float("-inf")
        return True

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
        order: Order,
        loop: LoopId,
        goal: int | None,
        checkpoint: CheckpointState | None,
        shares: tuple[RankShare, ...] = (),
    ) -> Progress:
        """``order``: of the data in ``loop``. ``goal``, ``shares``: as of ``Progress``."""
        samples = order.samples_before(step)
        return Progress(
            generation=generation.number,
            world_size=generation.world_size,
            members=generation.size,
            step=step,
            total_steps=loop.end,
            nth_loop=loop.nth,
            goal=goal,
            epoch=order.where(step)[0],
            samples=samples,
            loss=self.loss,
            step_seconds=None if self.step_seconds is None else self.step_seconds / self._factor,
            batch=self.batch.figures(samples),
            shares=shares,
            rescales=tuple(self.rescales),
            checkpoint=checkpoint,
            audit_error=self.audit_error,
        )


# -- traces, by rank 0: nothing of them runs between rescales ----------------------------------------------------------
def spans(switch: Switch, first_commit: float) -> tuple[list[Span], Span]:
    """The spans of a rank's phases in a rescale, with ``rank.pause``, and the span of the whole. Pure."""
    times, phases = switch.times, switch.times.intervals(first_commit)
    if times.last_commit is not None:
        phases["pause"] = (times.since, first_commit)
    who: dict[str, Attribute] = {"elastrain.rank": switch.rank}
    found = [Span(f"rank.{name}", begin, max(begin, end), who) for name, (begin, end) in phases.items()]
    facts: dict[str, Attribute] = {
        "elastrain.from_ranks": switch.from_size,
        "elastrain.to_ranks": switch.generation.world_size,
        "elastrain.reason": switch.generation.reason,
        "elastrain.step": switch.step,
        "elastrain.lost_steps": switch.lost_steps,
        "elastrain.pause_seconds": round(first_commit - times.since, 4),
    }
    return found, Span(ROOT, min(span.start for span in found), first_commit, who | facts)


def tracer_of(environ: Mapping[str, str]) -> Tracer | None:
    """Of a rank with this environment; None if no trace collector is configured."""
    who = {"elastrain.worker": environ.get(names.ENV_WORKER, ""), "elastrain.job": environ.get(names.ENV_JOB, "")}
    return tracing.from_environment(environ, "elastrain-rank", **who)
