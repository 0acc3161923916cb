"""The model's buffers that forward changes (BatchNorm's running statistics), restored if a step is discarded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from elastrain.elastic import torch_private

SMALL_BYTES = 256 * 2**10
"""Below this size every buffer has a copy and is sent: a forward that is not the first may change it."""


@dataclass(slots=True)
class _Kept:
    """A buffer, by its place in the model, and a copy: code may give the place another tensor."""

    owner: nn.Module
    key: str
    name: str
    copy: torch.Tensor
    changes: bool = True
    """Whether the warm-up's forward has changed it. Otherwise its version tells whether it differs from the copy."""
    copied: torch.Tensor | None = None
    version: int = 0

    @property
    def buffer(self) -> torch.Tensor | None:
        return self.owner._buffers.get(self.key)

    @property
    def may_differ(self) -> bool:
        return self.changes or self.buffer is not self.copied or _version(self.buffer) != self.version

    def save(self) -> None:
        if (buffer := self.buffer) is not None and self.may_differ:
            if _fits(self.copy, buffer):
                self.copy.copy_(buffer.detach())
            else:
                self.copy = buffer.detach().clone()
            self.note()

    def restore(self) -> None:
        if self.may_differ:
            _put(self.owner, self.key, self.copy)
            self.note()

    def note(self) -> None:
        """Buffer and copy are equal."""
        self.copied, self.version = self.buffer, _version(self.buffer)


class Buffers:
    """Copies of a model's buffers. The warm-up finds those that forward changes, which are copied in each step; of the
    others the small ones are copied when they have changed."""

    def __init__(self, module: nn.Module) -> None:
        """Copy all buffers of ``module``."""
        self._module = module
        self._kept = [_Kept(owner, key, name, b.detach().clone()) for owner, key, name, b in _places(module)]

    def after_warm_up(self) -> list[str]:
        """Restore all buffers. Returns the names of those that had changed."""
        for kept in self._kept:
            kept.changes = kept.buffer is None or not _same(kept.buffer, kept.copy)
            if kept.changes:
                kept.restore()
            kept.note()
        self._kept = [kept for kept in self._kept if kept.changes or kept.copy.nbytes < SMALL_BYTES]
        return [kept.name for kept in self._kept if kept.changes]

    @property
    def changing(self) -> list[torch.Tensor]:
        """Those that forward changes, after :meth:`after_warm_up`."""
        return [kept.buffer for kept in self._kept if kept.changes and kept.buffer is not None]

    @property
    def largest(self) -> int:
        """Bytes of the largest buffer that forward changes; 0 if it changes none."""
        return max((kept.copy.nbytes for kept in self._kept if kept.changes), default=0)

    def save(self) -> None:
        """Copy the buffers: a step begins."""
        for kept in self._kept:
            kept.save()

    def restore(self) -> None:
        """Put the copies back: the step was discarded."""
        for kept in self._kept:
            kept.restore()

    def sent(self) -> dict[str, torch.Tensor]:
        """By name: the buffers that forward changes, and the small ones."""
        found = ((kept.name, kept.buffer) for kept in self._kept)
        return {name: b.detach() for name, b in found if b is not None and b.layout is torch.strided}

    def take(self, values: Mapping[str, torch.Tensor]) -> None:
        """Give the model the buffers that another rank has sent. Raises ``ValueError`` as of :func:`put`."""
        put(self._module, values)


def _places(module: nn.Module) -> Iterator[tuple[nn.Module, str, str, torch.Tensor]]:
    """Module, key and name of each buffer, once, and the buffer."""
    seen: set[int] = set()
    for path, owner in module.named_modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                yield owner, key, f"{path}.{key}" if path else key, buffer


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To the bit, for every dtype."""
    if (a.dtype, a.shape, a.layout) != (b.dtype, b.shape, b.layout):
        return False
    a, b = (t.detach() if t.layout is torch.strided else t.detach().to_dense() for t in (a, b))
    same: bool = torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    return same


def _version(buffer: torch.Tensor | None) -> int:
    """Rises with each change in place; -1: not known."""
    return -1 if buffer is None or buffer.is_inference() else buffer._version


def _put(owner: nn.Module, key: str, value: torch.Tensor) -> None:
    """In place where it fits."""
    own = owner._buffers.get(key)
    if own is not None and _fits(own, value):
        with torch.no_grad():
            own.copy_(value)
    else:
        owner._buffers[key] = value.detach().clone()


def _fits(own: torch.Tensor, value: torch.Tensor) -> bool:
    return (own.dtype, own.shape, own.layout) == (value.dtype, value.shape, value.layout)


def hidden(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of ``module`` that are not in its ``state_dict`` (``persistent=False``), by name."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, owner in module.named_modules()
        for name in sorted(torch_private.hidden_buffers(owner))
        if (buffer := owner._buffers.get(name)) is not None
    }


def put(module: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Give buffers of ``module``, by name, these values, in place where they fit. One that is missing is registered as
    one of :func:`hidden`. Raises ``ValueError`` naming a buffer whose module is missing."""
    owners = dict(module.named_modules())
    for path, value in values.items():
        where, _, name = path.rpartition(".")
        if (owner := owners.get(where)) is None:
            raise ValueError(f"the state has the buffer {path!r}, and the model has no module {where!r}")
        own = owner._buffers.get(name)
        device = own.device if own is not None else next((p.device for p in module.parameters()), value.device)
        if name not in owner._buffers:
            owner.register_buffer(name, None, persistent=False)
        _put(owner, name, value.to(device))
