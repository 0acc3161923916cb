"""The model's buffers that forward changes (BatchNorm's running statistics), restored if a step is discarded."""

from __future__ import annotations

import torch
from torch import nn


class Buffers:
    """Copies of a model's buffers. The warm-up finds those that forward changes; after it only these are copied."""

    def __init__(self, module: nn.Module) -> None:
        """Copy all buffers of ``module``."""
        self._kept = [(name, b, b.detach().clone()) for name, b in module.named_buffers()]

    def after_warm_up(self) -> list[str]:
        """Restore all buffers, and from now on copy only those that had changed. Returns their names."""
        self._kept = [(name, b, copy) for name, b, copy in self._kept if not torch.equal(b, copy)]
        self.restore()
        return [name for name, _, _ in self._kept]

    @property
    def largest(self) -> int:
        """Bytes of the largest buffer that forward changes; 0 if it changes none."""
        return max((b.nbytes for _, b, _ in self._kept), default=0)

    def save(self) -> None:
        """Copy the buffers: a step begins."""
        for _, buffer, copy in self._kept:
            copy.copy_(buffer.detach())

    def restore(self) -> None:
        """Put the copies back: the step was discarded."""
        with torch.no_grad():
            for _, buffer, copy in self._kept:
                buffer.copy_(copy)
