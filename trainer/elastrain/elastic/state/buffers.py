"""The buffers of models: those outside of the ``state_dict``, and their places."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from elastrain.elastic import torch_private


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
        put_buffer(owner, name, value.to(device))


def put_buffer(owner: nn.Module, key: str, value: torch.Tensor) -> None:
    """Give a buffer of ``owner`` itself this value, in place where it fits."""
    own = owner._buffers.get(key)
    if own is not None and fits(own, value):
        with torch.no_grad():
            own.copy_(value)
    else:
        owner._buffers[key] = value.detach().clone()


def fits(own: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether ``own`` can take over ``value`` in place."""
    return (own.dtype, own.shape, own.layout) == (value.dtype, value.shape, value.layout)
