"""The training state as one tree: captured from the tracked objects, described, restored.

Every object with ``state_dict`` and ``load_state_dict`` can be tracked.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils import _pytree

from elastrain.elastic.state import buffers, digest, loading, parts, sparse

HIDDEN = "/buffers"
"""Appended to the name of a model."""


class Stateful(Protocol):
    """An object whose state can be saved and loaded."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Slot:
    """The placeholder of a tensor in the description of a tree."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    """Type of the tensor's device: "cpu", "cuda", …"""


def capture(tracked: Mapping[str, Stateful], *, emptied: bool = False) -> dict[str, Any]:
    """The present state of each object, by name. Tensors are the live ones, not copies; of sharded ones this rank's
    parts, or with ``emptied`` only their description. A model's buffers that are not in its ``state_dict`` have an
    entry of their own, :data:`HIDDEN`."""
    take = parts.emptied if emptied else parts.taken
    states = {name: take(obj.state_dict()) for name, obj in tracked.items()}
    modules = {name: obj for name, obj in tracked.items() if isinstance(obj, nn.Module)}
    hidden = {name + HIDDEN: take(found) for name, obj in modules.items() if (found := buffers.hidden(obj))}
    return states | hidden


def restore(tracked: Mapping[str, Stateful], state: dict[str, Any]) -> None:
    """Load ``state`` into the tracked objects, to the bit (:mod:`elastrain.elastic.state.loading`).

    Raises ``ValueError`` naming the entries that only one side has: a skipped optimizer would train on with its own
    state; and :class:`~elastrain.elastic.state.loading.NotTheSame`.
    """
    hidden = {name.removesuffix(HIDDEN): tree for name, tree in state.items() if name.endswith(HIDDEN)}
    state = {name: tree for name, tree in state.items() if not name.endswith(HIDDEN)}
    if missing := sorted(tracked.keys() - state.keys()):
        raise ValueError(f"the saved state has no entry for tracked {', '.join(missing)}; it has {sorted(state)}")
    if surplus := sorted(state.keys() - tracked.keys()):
        raise ValueError(f"the saved state has {', '.join(surplus)}, which this script does not track (job.track)")
    optimizers = [obj for obj in tracked.values() if isinstance(obj, torch.optim.Optimizer)]
    shared = [(a, b) for a in optimizers for b in optimizers if a is not b and a.param_groups is b.param_groups]
    for name, obj in tracked.items():
        loading.load(name, obj, state[name], tracked.values())
        if isinstance(obj, nn.Module) and name in hidden:
            buffers.put(obj, sparse.put(hidden[name]))
    for inner, outer in shared:  # an optimizer within another one comes first
        inner.param_groups = outer.param_groups


def structure(tree: Any) -> int:
    """A positive 63-bit number for the names, types and shapes of the tree's tensors.

    Ranks with equal numbers can each send a part of their state to the same receiver.
    """
    leaves, _ = _pytree.tree_flatten_with_path(tree)
    described = [(_pytree.keystr(path), slot(leaf)) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    return digest.of_value(described)


def copied(tree: Any, into: Any = None, *, device: str | None = None) -> Any:
    """A copy that shares no memory with ``tree``. ``device``: of its tensors; default: that of the copied ones.

    The copy reuses the tensors of ``into``, an earlier copy that is no longer needed, where they fit. The first write
    to each page of new memory would take longer than the copy itself.
    """
    homes = dict(_pytree.tree_flatten_with_path(into)[0])

    def copy(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return deepcopy(leaf)
        home = homes.get(path)
        if home is not None and _alike(home, leaf):
            return home.copy_(leaf.detach())
        return leaf.detach().to(device or leaf.device, copy=True)

    return _pytree.tree_map_with_path(copy, tree)


def _alike(home: object, leaf: torch.Tensor) -> bool:
    if not isinstance(home, torch.Tensor) or home.layout != torch.strided or leaf.layout != torch.strided:
        return False
    return (home.dtype, home.shape, home.stride()) == (leaf.dtype, leaf.shape, leaf.stride())


def slot(leaf: Any) -> Any:
    """The description of a tensor; anything else stays as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    stride = leaf.stride() if is_dense(leaf) else torch.empty(leaf.shape, device="meta").stride()
    return Slot(leaf.dtype, tuple(leaf.shape), stride, leaf.device.type)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one run of memory, in any order of the dimensions."""
    run = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != run:
                return False
            run *= size
    return True


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as a flat uint8 view, in the order of :func:`slot`'s stride (a copy if it has gaps)."""
    if not is_dense(tensor):
        tensor = tensor.contiguous()
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
