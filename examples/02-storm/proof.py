"""What a run has left behind, and whether it is what was promised. Pure but for reading files."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shared"))
import curves
from weather import Kind

from elastrain.api.records import Rescale
from elastrain_audit.judge import Verdict

TOLERANCE = {"float32": 1e-3, "float64": 1e-10}
"""Greatest difference between two runs that may still come from summing in another order, in nats per byte."""


@dataclass(frozen=True, slots=True)
class Fired:
    """An event that has happened."""

    kind: Kind
    worker: str
    """The affected worker; empty for joins and leaves, for which elastrain chooses the worker."""
    step: int
    """Committed steps then."""


@dataclass(slots=True)
class Run:
    """One training, disturbed or not."""

    name: str
    folder: Path
    steps: int
    """That it should have done."""
    fired: list[Fired] = field(default_factory=list)
    rescales: dict[int, Rescale] = field(default_factory=dict)
    """By generation."""
    started: float = 0.0
    """Seconds until its first workers had trained together,"""
    seconds: float = 0.0
    """and until it was over."""
    ended: str = ""
    """How the job ended: ``finished``, or what went wrong."""
    verdict: Verdict | None = None
    losses: dict[int, float] = field(default_factory=dict)
    """Loss of the global batch by step, from 1."""
    worlds: dict[int, int] = field(default_factory=dict)
    """Ranks that computed the step."""
    contradictions: list[str] = field(default_factory=list)

    def read_losses(self) -> None:
        """Every rank has written every step that it saw committed; they must agree to the bit."""
        found = curves.read(self.folder)
        self.losses, self.worlds, self.contradictions = found.losses, found.worlds, found.contradictions

    def last_step(self) -> int:
        """The newest step that is in a file by now."""
        lines = [f.read_bytes().split(b"\n")[-2:-1] for f in self.folder.glob("losses.*.jsonl")]
        return max((json.loads(line[0])[0] for line in lines if line), default=0)


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and what was found."""

    kept: bool
    found: str


def difference(one: Run, other: Run) -> dict[int, float]:
    """Absolute difference of the losses, by step."""
    return {
        step: abs(one.losses[step] - other.losses[step]) for step in sorted(one.losses.keys() & other.losses.keys())
    }


def parameter_difference(one: Run, other: Run) -> float:
    """Greatest absolute difference between two parameters of the final models."""
    import torch

    a, b = (torch.load(run.folder / "model.pt") for run in (one, other))
    return max((a[name] - b[name]).abs().max().item() for name in a)


def alone(run: Run) -> list[Check]:
    """What must hold for ``run`` whatever the other runs did."""
    verdict = run.verdict
    if run.ended != "finished" or verdict is None:
        return [Check(False, f"{run.name}: {run.ended}")]
    lost_steps = sum(r.lost_steps for r in run.rescales.values())
    missing = sorted(set(range(1, run.steps + 1)) ^ run.losses.keys())
    killed = Counter(f.worker for f in run.fired if f.kind is Kind.KILL_RANK)
    replaced = [w for w, pids in verdict.pids.items() if len(pids) > 1 + killed[w]]
    return [
        Check(
            verdict.ok and verdict.epochs > 0,
            f"samples: {verdict.samples} in {verdict.steps} steps, {verdict.epochs} whole epochs: "
            f"{verdict.lost} lost, {verdict.repeated} repeated" + "".join(f"; {p}" for p in verdict.problems),
        ),
        Check(
            not (missing or lost_steps or verdict.redone),
            f"steps: {len(run.losses)} of {run.steps} committed, {lost_steps} lost, {verdict.redone} done again"
            + (f"; without a loss: {missing[:10]}" if missing else ""),
        ),
        Check(
            not run.contradictions,
            "losses: all ranks saw the same bits in every step"
            if not run.contradictions
            else f"losses: ranks disagree in {len(run.contradictions)} steps: {run.contradictions[0]}",
        ),
        Check(
            not replaced,
            "processes: none was started again but those that were killed"
            if not replaced
            else f"processes: started again without having been killed: {', '.join(replaced)}",
        ),
    ]


def together(calm: Run, storm: Run, dtype: str) -> Check:
    """Whether the storm has changed the model."""
    worst = max(difference(calm, storm).values())
    parameters = parameter_difference(calm, storm)
    return Check(
        worst <= TOLERANCE[dtype],
        f"{storm.name} and {calm.name}: losses differ by at most {worst:.1e} nats, the last one by "
        f"{difference(calm, storm)[calm.steps]:.1e}, final parameters by at most {parameters:.1e} ({dtype})",
    )
