"""Where two results of training differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def differences(one: Any, other: Any, *, atol: float, path: str = "") -> Iterator[str]:
    """Where two saved results differ by more than ``atol`` (0: at all); everything is compared."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            yield f"{path}: {sorted(map(str, one))} and {sorted(map(str, other))}"
            return
        for key, value in one.items():
            yield from differences(value, other[key], atol=atol, path=f"{path}.{key}")
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, atol=atol, path=f"{path}[{number}]")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
        apart = (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
        if not apart <= atol:
            yield f"{path}: {apart:.3g} apart"
    elif isinstance(one, float) and isinstance(other, float):
        if not abs(one - other) <= atol:
            yield f"{path}: {one!r} and {other!r}"
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"
