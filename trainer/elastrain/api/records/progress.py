"""What rank 0's agent writes: how far training is, what rescales took, and the newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from elastrain.api.base import Few, Record, Text
from elastrain.api.batch import BatchFigures, RankShare

PHASES = ("detect", "decide", "connect", "transfer", "first_step")
"""Phases of a rescale, in order."""


def _few(phases: object) -> object:
    """Before an entry is read, since each wrong one is an error."""
    if isinstance(phases, dict) and len(phases) > 16:
        raise ValueError("has more than 16 phases")
    return phases


class Rescale(Record):
    """One rescale, as measured by rank 0 of the new generation, a survivor."""

    generation: int
    from_size: int
    """Ranks before; 0 at the start."""
    to_size: int
    reason: str
    step: int
    """Committed steps at the switch."""
    pause_seconds: float
    """Seconds from the last committed step of the old generation to the first of the new one."""
    lost_steps: int = 0
    """Committed steps that were repeated."""
    phases: Annotated[dict[str, float], BeforeValidator(_few)] = Field(default_factory=dict)
    """Seconds by phase: ``detect`` and ``decide`` (unplanned changes only); ``connect`` (in a planned change it
    overlaps training and is not part of the pause); ``transfer`` (until joiners have the state; the first step is
    computed meanwhile); ``first_step`` (its remainder)."""


def in_words(phases: Mapping[str, float]) -> str:
    """The phases of a rescale as text: ``detect 21 ms, connect 12 ms, first step 150 ms``."""
    return ", ".join(f"{name.replace('_', ' ')} {seconds * 1000:.0f} ms" for name, seconds in phases.items())


class Resumed(Record):
    """The checkpoint from which a job went on when no worker held the training state."""

    step: int
    tier: str
    """volume or object store."""
    path: str


class CheckpointState(Record):
    """The newest durable checkpoint, and the error of the last attempt if it failed."""

    step: int = 0
    path: str = ""
    error: Text = ""
    """Empty if the last attempt succeeded; else the operation, the path and the system's message."""
    archived_step: int = 0
    """Step of the newest copy in ``spec.checkpoint.archive``; 0: none is known."""
    archive_error: Text = ""
    """Empty if the last copy to it succeeded."""
    resumed: Resumed | None = None
    """Until the next save."""


class Progress(Record):
    """The progress of training. Written by rank 0's agent at most once a second; read by the operator and the CLI."""

    shown = frozenset(
        {"total_steps", "goal", "epoch", "samples", "loss", "step_seconds", "rescales", "stragglers", "batch", "shares"}
    )

    generation: int
    world_size: int
    members: int
    step: int
    total_steps: int | None = None
    """Committed steps at the end of the present loop: joiners enter it."""
    nth_loop: int = 0
    """As of :attr:`elastrain.api.loops.LoopId.nth`, of the present loop."""
    goal: int | None = None
    """Committed steps at the end of ``job.epochs``, of which the present loop is a part; None: the script has none."""
    epoch: int = 0
    samples: int = 0
    """Samples of committed steps, over all epochs."""
    loss: float | None = None
    """Mean loss over the last committed global batch."""
    step_seconds: float | None = None
    """Smoothed duration of an undisturbed step, in seconds; with ``batch``, for each batch of the script in it."""
    batch: BatchFigures | None = None
    """Of a job with ``spec.batch``: ``step``, ``total_steps`` and ``goal`` then count batches of the script."""
    shares: Few[RankShare] = ()
    """With ``spec.shares: Measured``, once the generation has decided: of at most 16 ranks, slowest first."""
    rescales: Few[Rescale] = ()
    """The newest ten, oldest first."""
    checkpoint: CheckpointState | None = None
    audit_error: Text = ""
    """From which step on rank 0's audit log is incomplete, and why; empty: it has all steps, or there is none."""
    stragglers: Few[Annotated[str, Field(max_length=253)]] = ()
    """Names of at most 16 workers that delay the others (``Member.health`` is ``slow``). Added by rank 0's agent."""
    finished: bool = False
    """The training loop has ended on every rank, and the script of rank 0's worker exited with 0."""
