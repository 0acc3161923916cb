"""One comparison, and the record of a block. Plain values: driver and ranks share them as JSON."""

from __future__ import annotations

from typing import Literal

from bench_harness.stats import Model

ENV_CASE = "STEADY_BENCH_CASE"
ENV_DIRECTORY = "STEADY_BENCH_DIRECTORY"
WARM_UP_STEPS = 10
"""Of each variant before the first block: DDP builds its buckets anew after the first step."""

Variant = Literal["elastrain", "control", "ddp", "views", "bare"]
"""``ddp``: with default options; ``views``: with ``gradient_as_bucket_view``, as elastrain uses it; ``bare``: the model
without DDP, for one rank. ``control``: the baseline once more, which shows the resolution of a comparison.
"""


class Case(Model):
    """One comparison."""

    workload: Literal["perceptron", "tiny"]
    ranks: int
    baseline: Variant
    subject: Variant = "elastrain"
    """Compared with the baseline."""
    block: int
    """Steps of a variant in a row."""
    quads: int
    """Groups of four blocks of one start: one variant, the other one twice, the first one again."""
    starts: int = 1
    """Starts of all processes: the placement of their memory makes a variant faster or slower by percents, the same for
    all quads of a start."""
    device: Literal["cpu", "cuda"] = "cpu"
    kept: int = 1
    """Steps whose gradients add up in ``.grad`` before the update, as in loops that accumulate by hand."""

    @property
    def name(self) -> str:
        name = f"{self.workload}-{self.ranks}-{self.baseline}"
        if self.kept > 1:
            name = f"{name}-kept-{self.kept}"
        return name if self.subject == "elastrain" else f"{name}-{self.subject}"


class Block(Model):
    """Steps of one variant in a row, as one rank measured them."""

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
    neither a drift nor the position in a quad favours one of them."""
    ours = [case.subject, case.baseline, case.baseline, case.subject]
    theirs = [case.baseline, case.subject, case.subject, case.baseline]
    return [v for i in range(case.quads) for v in (theirs if i % 2 else ours)]
