"""The model's buffers that forward changes (BatchNorm's running statistics), restored if a step is discarded."""

from __future__ import annotations

from collections.abc import Mapping

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


def hidden(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of ``module`` that are not in its ``state_dict`` (``persistent=False``), by name."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, owner in module.named_modules()
        for name in sorted(owner._non_persistent_buffers_set)
        if (buffer := owner._buffers.get(name)) is not None
    }


def put_hidden(module: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Give the buffers of :func:`hidden` these values, in place where they fit. Raises ``ValueError`` naming a buffer
    whose module is missing."""
    owners = dict(module.named_modules())
    for path, value in values.items():
        where, _, name = path.rpartition(".")
        if (owner := owners.get(where)) is None:
            raise ValueError(f"the state has the buffer {path!r}, and the model has no module {where!r}")
        own = owner._buffers.get(name)
        if own is not None and (own.dtype, own.shape, own.layout) == (value.dtype, value.shape, value.layout):
            with torch.no_grad():
                own.copy_(value)
        else:
            device = own.device if own is not None else next((p.device for p in module.parameters()), value.device)
            owner.register_buffer(name, value.detach().to(device), persistent=False)
