"""The lines of the report: each check passes, fails, or cannot be done here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bench_harness.stats import Model
from bench_harness.tables import Table

ENV_DRY = "GPU_BENCH_DRY"
"""Set in processes of the dry part."""
Outcome = Literal["pass", "fail", "not possible here"]
Figures = dict[str, float | str]


class NotPossible(Exception):
    """The check needs what this machine does not have; the message says what."""


class Line(Model):
    """One check."""

    name: str
    outcome: Outcome
    seconds: float
    """That it has taken."""
    figures: Figures = Field(default_factory=dict)
    why: str = ""
    """Of a check that has not passed."""


class Report(Model):
    """All checks of a run."""

    dry: bool
    """Without a GPU: gloo in NCCL's place, small sizes. No figure means anything."""
    command: str
    began: str
    device: str
    torch: str
    nccl: str
    lines: list[Line]

    @property
    def failed(self) -> list[str]:
        return [line.name for line in self.lines if line.outcome == "fail"]

    @property
    def tables(self) -> list[Table]:
        rows = tuple((line.name, line.outcome, _words(line), f"{line.seconds:.1f}") for line in self.lines)
        return [Table("One GPU" if not self.dry else "Dry run on the CPU", ("check", "", "figures", "s"), rows, 3)]

    @property
    def notes(self) -> list[str]:
        return [
            f"Command: `{self.command}`; {self.began}.",
            f"Device: {self.device}; torch {self.torch}; NCCL {self.nccl}.",
            *(["No GPU: gloo stands in for NCCL, sizes are small, and no figure means anything."] if self.dry else []),
        ]


def _words(line: Line) -> str:
    figures = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in line.figures.items()
    )
    return "; ".join(part for part in (figures, line.why) if part)
