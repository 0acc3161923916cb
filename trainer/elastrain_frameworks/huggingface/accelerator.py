"""The Accelerator of transformers' Trainer in an elastic job."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from elastrain_frameworks.accelerate import OfJob
from elastrain_frameworks.huggingface.numbers import Numbers
from elastrain_frameworks.refusals import one_part


class JobsAccelerator(OfJob):
    """The calls by which the loop, or an overridden ``training_step``, reaches the ranks."""

    options: dict[str, Any]
    """Of ``job.wrap()``."""
    evaluates = False
    """Whether each rank computes all of an evaluation."""
    numbers: Numbers
    samples = 0
    """Of this body."""
    tokens: torch.Tensor | None = None
    """Of this body, if its loss is a mean over them."""
    ghost = False
    given = whole = torch.tensor(0.0)
    """The loss of this body; that of the global batch."""

    def wrap_options(self) -> dict[str, Any]:
        """Those of the arguments."""
        return self.options

    def check_whole(self, name: str, caller: FrameType) -> None:
        """What TRL's trainers gather goes into lists, of which :class:`Numbers` makes those of the global batch."""
        by_framework = caller.f_globals["__name__"].startswith(("trl.", "accelerate."))
        if self.job.body is not None and not (self.evaluates or by_framework):
            raise one_part(f"accelerator.{name}()", "in an evaluation")

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """On the mean over samples, or on the sum over a count of tokens."""
        self.given = loss.detach()
        self.numbers.before_backward(self.samples if self.tokens is None else float(self.tokens))
        if self.tokens is not None:
            loss, options = loss * self.tokens.clamp(min=1), {"count": self.tokens.long()}
        self.whole = self.job.backward(self.scaler.scale(loss) if self.scaler is not None else loss, **options)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor | None:
        """The norm of the gradient over the global batch."""
        return None if self.ghost else super().clip_grad_norm_(parameters, max_norm, norm_type)
