"""How many of the script's batches a step takes: one. With ``spec.batch`` a guest (``elastrain_batches``) chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from elastrain import guests
from elastrain.api.batch import BatchFigures
from elastrain.api.settings import BatchSettings
from elastrain.data.order import Order, Slice
from elastrain.data.share import Place
from elastrain.data.spans import ONE, Spans
from elastrain.elastic.commit.step import Step
from elastrain.elastic.strategies.strategy import ElasticModule, Measure


class ScriptsBatch:
    """A step takes one batch of the script: the job has no ``spec.batch``."""

    small: Measure | None = None
    """What the steps measure of the gradients' noise."""
    factor = 1
    """Batches of the script in one step."""
    span = 1
    """Those of the step whose loop body runs; 1 outside."""
    learning_rate = 1.0
    """What the script's learning rate is multiplied by in the step whose loop body runs."""
    lost = 0.0
    """Progress that the larger batches have cost so far, in samples of the script's batch. The same on all ranks."""

    def begin_loop(self, order: Order) -> None:
        """Raises ``ValueError`` for data whose batches cannot be put together, or are out of the bounds."""

    @property
    def single(self) -> Spans:
        """Of a step of one batch."""
        return ONE

    def begin_step(self, end: int, stops: tuple[int, ...]) -> Spans:
        """A step begins, or begins again. Returns the batches that this and the next steps take.

        ``end``, ``stops``: as of :class:`Spans`.
        """
        return ONE

    def of_part(self, step: Step, part: Slice, loss: torch.Tensor, unscaled: torch.Tensor) -> None:
        """The backward of micro-batch ``part`` of ``step`` follows."""

    def votes(self, place: Place) -> Sequence[float]:
        """What this rank adds to its vote: equally many numbers on all ranks."""
        return ()

    def measure(self, step: Step, model: ElasticModule) -> None:
        """The gradients of ``step``, which counts, are complete."""

    def commit(self, step: Step) -> None:
        """``step`` is committed."""

    def interrupt(self) -> None:
        """The time to the next commit is not that of a step."""

    def state(self) -> dict[str, Any] | None:
        """What joiners and checkpoints receive."""

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on with ``state``; None: of a job that had no ``spec.batch``."""

    def figures(self, samples: int) -> BatchFigures | None:
        """For reports. ``samples``: of all committed steps."""


def batch_of(settings: BatchSettings | None) -> ScriptsBatch:
    """The batch of a job with these settings. Raises ``ModuleNotFoundError`` without the guest that chooses batches."""
    if settings is None:
        return ScriptsBatch()
    chosen: ScriptsBatch = guests.load("elastrain_batches.chosen").ChosenBatch(settings)
    return chosen
