"""Squared lengths of small batches' gradients, for the noise scale (:mod:`elastrain_batches.noise`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from elastrain.elastic.torch_private import foreach_norm


class SmallGradient:
    """The squared length of one small batch's gradient on this rank, in the steps that measure it.

    For the training thread and autograd's threads. Nothing waits for a device before :meth:`votes`.
    """

    def __init__(self) -> None:
        self.open = False
        """Whether gradients are to be added."""
        self._squares: list[torch.Tensor] = []
        self._samples, self._unit = 0, 1.0

    def begin(self, *, measures: bool) -> None:
        """A step begins, and :meth:`add` follows if it ``measures``."""
        self.open, self._squares, self._samples = measures, [], 0

    def of(self, samples: int, unit: float) -> None:
        """The gradients to be added are those of ``samples``, times ``unit``. Without samples nothing is measured."""
        self._samples, self._unit = samples, unit
        self.open = self.open and samples > 0 and unit > 0

    def add(self, gradients: Iterable[torch.Tensor]) -> None:
        """Add gradients, before they are summed over the ranks."""
        if self.open:
            self._squares.append(squared(gradients))

    def close(self) -> None:
        """What follows belongs to other micro-batches."""
        self.open = False

    def votes(self) -> Sequence[float]:
        """Squared length, 1 / samples, and 1; or zeros if this rank has measured nothing. For the sum over all."""
        if not self._squares:
            return (0.0, 0.0, 0.0)
        length = sum(s.item() for s in self._squares) / self._unit**2
        return (length, 1 / self._samples, 1.0)


def squared(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The sum of the squares of all elements, on their device."""
    tensors = list(gradients)
    wide = None if any(t.dtype is torch.float64 for t in tensors) else torch.float32  # sums of float16 overflow
    return torch.stack([n.double() for n in foreach_norm(tensors, 2, dtype=wide)]).square().sum()
