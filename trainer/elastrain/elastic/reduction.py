"""What ``job.all_reduce()`` sends, how the values of all ranks become one, and the count of a loss. Pure."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from elastrain.elastic import encoding

OPERATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda values: values.sum(dim=0),
    "mean": lambda values: values.sum(dim=0).double() / len(values),
    "min": lambda values: values.amin(dim=0),
    "max": lambda values: values.amax(dim=0),
}
"""Each takes the values of all ranks, stacked in rank order."""
_CACHED = 1 << 16
"""Elements: half a MiB in float64."""


def encode(value: Any, operation: str) -> bytes:
    """``value``, a number or a tensor, as it travels. Raises ``TypeError`` or ``ValueError`` naming the argument."""
    if operation not in OPERATIONS:
        raise ValueError(f"job.all_reduce(op={operation!r}): must be one of {', '.join(map(repr, OPERATIONS))}")
    return encoding.encode((operation, plain(value, "job.all_reduce(value)")))


def plain(value: Any, name: str) -> torch.Tensor:
    """A number or tensor as a dense CPU tensor that has no history. Raises ``TypeError`` with ``name``."""
    try:
        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as e:
        raise TypeError(f"{name}: {type(value).__name__} is neither a number nor a tensor") from e
    if tensor.is_complex() or tensor.layout is not torch.strided:
        raise TypeError(f"{name}: a tensor of {tensor.dtype} with layout {tensor.layout}; must be real and dense")
    return tensor.detach().cpu().contiguous().clone()


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """In the type that sums are made in: int64, or float64."""
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)


def reduce(rows: Sequence[bytes], like: Any) -> Any:
    """One value out of those of all ranks, in rank order.

    ``like``: this rank's value. A tensor is returned with its type and on its device (the mean of integers as float64),
    a number as a number. Raises ``ValueError`` on all ranks alike if they differ in operation, shape or type.
    """
    decoded = [encoding.decode(row) for row in rows]
    seen = [f"{operation} of {v.dtype} with shape {tuple(v.shape)}" for operation, v in decoded]
    for rank, what in enumerate(seen):
        if what != seen[0]:
            raise ValueError(f"job.all_reduce(): rank 0 calls it for a {seen[0]}, rank {rank} for a {what}")
    operation, mine = decoded[0]
    result = OPERATIONS[operation](torch.stack([exact(value) for _, value in decoded]))
    if not isinstance(like, torch.Tensor):
        return result.item() if result.dim() == 0 else result
    keeps = result.is_floating_point() == mine.is_floating_point()
    return result.to(like.device, like.dtype if keeps else result.dtype)


def sum_of_squares(tensors: Iterable[torch.Tensor]) -> float:
    """Of all elements, in float64."""
    return sum_of_products((tensor, tensor) for tensor in tensors)


def sum_of_products(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Of the elements of each pair, of equal shapes, in float64. Reads a tensor of the host once, in parts that stay in
    the processor's cache: five times as fast as a float64 copy of the whole. The host waits for a device once."""
    on_host, on_device = 0.0, list[torch.Tensor]()
    for one, other in pairs:
        if one.device.type == "cpu":
            on_host += sum(product.item() for product in _products(one, other))
        else:
            on_device += queued(one, other)
    return on_host + (torch.stack(on_device).sum().item() if on_device else 0.0)


def queued(one: torch.Tensor, other: torch.Tensor) -> Iterator[torch.Tensor]:
    """Summands of the product of two tensors on one device, of which nothing is read."""
    if one is other:
        yield torch.linalg.vector_norm(one, dtype=torch.float64).square()
    else:
        yield from _products(one, other)


def _products(one: torch.Tensor, other: torch.Tensor) -> Iterator[torch.Tensor]:
    for part, of_other in zip(one.reshape(-1).split(_CACHED), other.reshape(-1).split(_CACHED), strict=True):
        exactly = part.double()
        yield torch.dot(exactly, exactly if one is other else of_other.double())


def whole(count: int | torch.Tensor) -> int:
    """The count of ``job.backward``. Raises ``TypeError`` or ``ValueError``."""
    if isinstance(count, bool | float) or (
        isinstance(count, torch.Tensor) and (count.numel() != 1 or count.is_floating_point())
    ):
        raise TypeError(f"job.backward(count={count!r}): must be a whole number, of the summands of the loss")
    whole = operator.index(count)
    if whole < 0:
        raise ValueError(f"job.backward(count={whole}): must be 0 or more")
    return whole
