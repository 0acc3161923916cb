"""Runs a script in float64, whatever types it names, so that two runs of it agree to ten digits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_pre_hook

from elastrain.elastic.torch_private import pytree

_FLOAT = torch.Tensor.float


def use_float64() -> None:
    """New floating tensors are float64, and casts to a smaller type give float64 too. Autocast leaves float64 alone."""
    torch.set_default_dtype(torch.float64)
    for name in ("float", "half", "bfloat16"):
        setattr(torch.Tensor, name, torch.Tensor.double)
        setattr(nn.Module, name, nn.Module.double)
    GradScaler.unscale_ = _with_float32(GradScaler.unscale_)
    register_module_forward_pre_hook(_cast_inputs)


def _with_float32(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original`` with the cast to float32 that it needs: a scaler's factors are powers of two, so exact in it."""

    def unscaled(*args: Any, **options: Any) -> Any:
        float64, torch.Tensor.float = torch.Tensor.float, _FLOAT
        try:
            return original(*args, **options)
        finally:
            torch.Tensor.float = float64

    return unscaled


def _cast_inputs(module: nn.Module, inputs: Any) -> Any:
    """A script may call a part of its model with a tensor that no loader has cast."""
    own = next(module.parameters(recurse=False), None)
    return cast(inputs) if own is not None and own.dtype == torch.float64 else None


def cast(tree: Any) -> Any:
    """``tree`` with its floating tensors in float64."""
    return pytree.tree_map_only(torch.Tensor, _double, tree)


def cast_module(module: nn.Module) -> None:
    """Make the parameters and buffers float64, and what is passed to its forward."""
    module.double()
    module.register_forward_pre_hook(lambda _, args, kwargs: (cast(args), cast(kwargs)), with_kwargs=True)


def cast_copies() -> None:
    """Make float64 all modules of this process: averages and teachers are copies of a model before it was cast."""
    for obj in gc.get_objects():
        if issubclass(type(obj), nn.Module):
            obj.double()


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
