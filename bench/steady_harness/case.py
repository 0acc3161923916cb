"""What is compared, and what a rank writes down. Plain values: driver and ranks share them as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

ENV_CASE = "STEADY_BENCH_CASE"
ENV_DIRECTORY = "STEADY_BENCH_DIRECTORY"
WARM_UP_STEPS = 10
"""Of each variant before the first block: DDP builds its buckets anew after the first step."""
PROFILED_STEPS = 500
"""Of each variant, at most; a slow workload is profiled for :data:`PROFILED_SECONDS`."""
PROFILED_SECONDS = 10.0

Variant = Literal["elastrain", "control", "ddp", "views", "bare"]
"""``ddp``: with the options that a script gets that gives none; ``views``: with ``gradient_as_bucket_view``, as
elastrain uses it; ``bare``: the model as it is, for one rank. ``control``: ``ddp`` once more, to see what a comparison
is worth.
"""


class Case(BaseModel):
    """One comparison."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    workload: Literal["perceptron", "tiny"]
    ranks: int
    baseline: Variant
    subject: Variant = "elastrain"
    """What is compared with the baseline."""
    block: int
    """Steps of a variant in a row."""
    quads: int
    """Groups of four blocks of one start: one variant, the other one twice, the first one again."""
    starts: int = 1
    """So often all processes are started anew: where their memory happens to lie makes a variant faster or slower by
    percents, the same for all quads of a start."""
    profile: bool = False

    @property
    def name(self) -> str:
        name = f"{self.workload}-{self.ranks}-{self.baseline}"
        return name if self.subject == "elastrain" else f"{name}-{self.subject}"


class Block(BaseModel):
    """Steps of one variant in a row, as one rank measured them."""

    model_config = ConfigDict(frozen=True)

    rank: int
    number: int
    variant: Variant
    steps: int
    wall: float
    """Seconds."""
    cpu: float
    """Seconds of processor time of this rank's process, all threads."""


def order(case: Case) -> list[Variant]:
    """The variants of all blocks of a start. Quads begin with the subject and with the baseline in turns, so that
    neither a drift nor the place in a quad favours one of them."""
    ours = [case.subject, case.baseline, case.baseline, case.subject]
    theirs = [case.baseline, case.subject, case.subject, case.baseline]
    return [v for i in range(case.quads) for v in (theirs if i % 2 else ours)]
