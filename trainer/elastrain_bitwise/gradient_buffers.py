"""Flat copies of a model's gradients, for sums in a fixed order (:mod:`elastrain_bitwise.strategy`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(slots=True, eq=False)
class GradientBuffer:
    """One copy of all gradients."""

    flat: torch.Tensor
    """All gradients one after the other, the loss, and zeros up to the capacity."""
    views: list[torch.Tensor]
    """The same memory in the shapes of the parameters."""


class GradientBuffers:
    """Copies of the gradients of a model's parameters; free ones are reused."""

    def __init__(self, module: nn.Module) -> None:
        """Raises as :meth:`follow`."""
        self._module = module
        self._parameters: list[nn.Parameter] = []
        self.follow()

    def follow(self) -> None:
        """Take the parameters that require gradients now.

        Raises ``ValueError`` for parameters that are not real floating-point numbers.
        """
        named = [(name, p) for name, p in self._module.named_parameters() if p.requires_grad]
        if list(map(id, self._parameters)) == [id(p) for _, p in named]:
            return
        if odd := [name for name, p in named if not p.is_floating_point()]:
            raise ValueError(f"job.wrap(): numerics='bitwise': parameter {odd[0]} is not of a real floating-point type")
        self._parameters = [p for _, p in named]
        self.dtype = torch.float64 if any(p.dtype == torch.float64 for p in self._parameters) else torch.float32
        """Type of the sums. It represents gradients of smaller types exactly."""
        self._numbers = sum(p.numel() for p in self._parameters)
        self.capacity = 0
        """Numbers in a buffer."""
        self._free: list[GradientBuffer] = []
        self._in_use: GradientBuffer | None = None
        self._scratch = torch.empty(0)

    @property
    def nbytes(self) -> int:
        """Bytes in a buffer."""
        itemsize: int = self.dtype.itemsize
        return self.capacity * itemsize

    def fit(self, world_size: int) -> None:
        """Make the buffers divide into ``world_size`` chunks of equal length."""
        capacity = -(-(self._numbers + 1) // world_size) * world_size
        if capacity != self.capacity:
            self.capacity = capacity
            self._free, self._scratch = [], torch.empty(0)

    def take(self) -> GradientBuffer:
        """A buffer with any content."""
        if self._free:
            return self._free.pop()
        flat = torch.zeros(self.capacity, dtype=self.dtype, device=self._parameters[0].device)
        sizes = [p.numel() for p in self._parameters]
        parts = flat[: self._numbers].split(sizes)
        return GradientBuffer(flat, [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)])

    def free(self, buffer: GradientBuffer) -> None:
        """Allow ``buffer`` to be reused."""
        if len(buffer.flat) == self.capacity:
            self._free.append(buffer)

    def scratch(self, count: int, length: int) -> list[torch.Tensor]:
        """``count`` tensors of ``length`` numbers on the CPU, valid until the next call."""
        if len(self._scratch) != count * length:
            self._scratch = torch.empty(count * length, dtype=self.dtype)
        return list(self._scratch.view(count, length))

    def take_gradients(self, loss: torch.Tensor) -> GradientBuffer:
        """Move the gradients and the loss into a buffer; a missing gradient counts as zero."""
        buffer = self.take()
        for parameter, view in zip(self._parameters, buffer.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad.to_dense())
                parameter.grad = None
        buffer.flat[self._numbers] = loss.detach()
        return buffer

    def add_gradients(self, buffer: GradientBuffer, loss: torch.Tensor) -> None:
        """The same additions as with a buffer from :meth:`take_gradients`, without the copy."""
        for parameter, view in zip(self._parameters, buffer.views, strict=True):
            view.add_(0.0 if parameter.grad is None else parameter.grad.to_dense())
            parameter.grad = None
        buffer.flat[self._numbers] += loss.detach()

    def set_gradients(self, buffer: GradientBuffer) -> float:
        """Set the buffer's content as the gradients until they are cleared. Returns the loss."""
        for parameter, view in zip(self._parameters, buffer.views, strict=True):
            parameter.grad = view.to(parameter)
        self._in_use = buffer
        return float(buffer.flat[self._numbers])

    def clear_gradients(self) -> None:
        """Clear the gradients, and reuse the buffer that held them."""
        for parameter in self._parameters:
            parameter.grad = None
        if self._in_use is not None:
            self.free(self._in_use)
            self._in_use = None
