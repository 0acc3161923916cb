"""A backward that the script runs itself: a schedule of a pipeline interleaves forwards and backwards."""

from __future__ import annotations

from collections.abc import Callable

import torch

Schedule = Callable[[float], torch.Tensor | None]
"""Runs the forwards and backwards of this rank's part of the batch, so that the parameters have the gradients of
``weight`` times its mean loss. Returns that mean where this rank has it, the end of a pipeline; else None."""


class Scheduled:
    """Stands for the loss of a schedule, which is known when it has run."""

    requires_grad = False

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.value = torch.zeros((), dtype=torch.float64)
        """The mean loss; 0 before, and on a rank that has none."""

    def run(self, weight: float, *, needed: bool = False) -> None:
        """Raises ``RuntimeError`` if the loss is ``needed`` from this rank, and the schedule has returned none."""
        loss = self._schedule(weight)
        if loss is not None:
            self.value.copy_(loss.detach())
        elif needed:
            raise RuntimeError(
                "job.backward(schedule): the schedule has returned no loss on a rank of the last stage, whose loss "
                "counts: return the mean over the batch there, and None on the other stages (docs/sharded.md)"
            )

    def backward(self, retain_graph: bool = False) -> None:
        """As of a tensor, for the warm-up."""
        self.run(1.0)
