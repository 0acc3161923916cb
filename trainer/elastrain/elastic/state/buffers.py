"""The model's buffers that forward changes (BatchNorm's running statistics): a discarded step leaves no trace."""

from __future__ import annotations

import torch
from torch import nn


class Buffers:
    """Copies of a model's buffers. Which ones forward changes is found out by the warm-up; only these are kept then."""

    def __init__(self, module: nn.Module) -> None:
        """Copies all of them as they are now."""
        self._kept = [(name, b, b.detach().clone()) for name, b in module.named_buffers()]

    def after_warm_up(self) -> list[str]:
        """Put everything back, and from now on keep only what had changed: returns its names."""
        self._kept = [(name, b, copy) for name, b, copy in self._kept if not torch.equal(b, copy)]
        self.restore()
        return [name for name, _, _ in self._kept]

    @property
    def largest(self) -> int:
        """Bytes of the largest one that forward changes; 0 if it changes none."""
        return max((b.nbytes for _, b, _ in self._kept), default=0)

    def save(self) -> None:
        """A step begins."""
        for _, buffer, copy in self._kept:
            copy.copy_(buffer.detach())

    def restore(self) -> None:
        """The step was discarded."""
        with torch.no_grad():
            for _, buffer, copy in self._kept:
                buffer.copy_(copy)
