"""This rank's part of a tensor that is sharded over the ranks of its group (a ``DTensor``), in a tree of state.

The state moves between ranks that hold the same part, so only the local tensor travels, with what is needed to make a
``DTensor`` of it again: parameters and their optimizer state arrive as the optimizer of the receiver expects them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree

from elastrain.elastic.reshard.plan import bounds


@dataclass(frozen=True, slots=True)
class Part:
    """A node of the tree, with one child."""

    local: Any
    """The local tensor, or what stands for it."""
    dim: int
    """The dimension that is sharded."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    stride: tuple[int, ...]


def _flatten(part: Part) -> tuple[list[Any], Any]:
    return [part.local], (part.dim, part.shape, part.stride)


_pytree.register_pytree_node(
    Part,
    _flatten,
    lambda children, context: Part(*children, *context),
    serialized_type_name="elastrain.elastic.state.parts.Part",
    flatten_with_keys_fn=lambda part: ([(_pytree.GetAttrKey("local"), part.local)], _flatten(part)[1]),
)


def taken(tree: Any) -> Any:
    """``tree`` with a :class:`Part` for each ``DTensor``. Tensors are the live ones."""
    return _pytree.tree_map_only(torch.Tensor, _take, tree)


def emptied(tree: Any) -> Any:
    """As :func:`taken`, with the type of each local tensor in its place: what the tensors hold travels otherwise."""
    return _pytree.tree_map_only(Part, lambda p: replace(p, local=p.local.dtype), taken(tree), is_leaf=_is_part)


def put(tree: Any, home: Any, objects: Iterable[object]) -> Any:
    """The reverse of :func:`taken` or :func:`emptied`, for ``objects`` of which a module is sharded.

    An emptied part becomes the sharded tensor that ``home``, the object that the tree is for, has in its place; or a
    new one.
    """
    if not any(isinstance(leaf, Part) for leaf in _pytree.tree_leaves(tree, is_leaf=_is_part)):
        return tree
    from torch.distributed.tensor import DTensor, Shard

    mesh = next(
        p.device_mesh
        for obj in objects
        if isinstance(obj, nn.Module)
        for p in obj.parameters()
        if isinstance(p, DTensor)
    )
    own = dict(_pytree.tree_flatten_with_path(home.state_dict())[0])

    def assemble(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, Part):
            return leaf
        if not isinstance(local := leaf.local, torch.Tensor):
            mine = own.get(path)
            if isinstance(mine, DTensor) and tuple(mine.shape) == leaf.shape and mine.dtype == local:
                return mine
            start, stop = bounds(leaf.shape[leaf.dim], mesh.size(), mesh.get_coordinate()[0])
            shape = [*leaf.shape[: leaf.dim], stop - start, *leaf.shape[leaf.dim + 1 :]]
            local = torch.zeros(shape, dtype=local)
        local = local.to(mesh.device_type)  # a state that was kept apart arrives on the host
        return DTensor.from_local(
            local, mesh, [Shard(leaf.dim)], run_check=False, shape=torch.Size(leaf.shape), stride=leaf.stride
        )

    return _pytree.tree_map_with_path(assemble, tree, is_leaf=_is_part)


def dim_of(objects: Mapping[str, object], path: tuple[Any, ...], shape: Sequence[int]) -> int | None:
    """The dimension along which this rank's model shards the tensor at ``path`` of the tracked ``objects``; None: none.

    For a state that was saved whole: parameters go by their names, and a tensor of an optimizer is sharded like the
    parameter to which it belongs, if it has that shape.
    """
    keys = [getattr(key, "key", getattr(key, "idx", None)) for key in path]
    if keys[:1] != ["tracked"] or len(keys) < 3:
        return None
    owner, parameter = objects.get(str(keys[1])), None
    if isinstance(owner, nn.Module) and len(keys) == 3:
        parameter = owner.state_dict(keep_vars=True).get(keys[2])
    elif isinstance(owner, torch.optim.Optimizer) and keys[2] == "state" and len(keys) == 5:
        numbered = dict(enumerate(p for group in owner.param_groups for p in group["params"]))
        parameter = numbered.get(cast("int", keys[3]))
    if parameter is None or not is_sharded(parameter.data) or tuple(parameter.shape) != tuple(shape):
        return None
    (placement,) = parameter.data.placements
    return int(placement.dim)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a ``DTensor``. By the module of its class: importing DTensor would delay the start of every job."""
    return type(tensor).__module__.startswith("torch.distributed.tensor")


def _is_part(leaf: Any) -> bool:
    return isinstance(leaf, Part)


def _take(tensor: Any) -> Any:
    if not is_sharded(tensor):
        return tensor
    (placement,) = tensor.placements
    return Part(tensor.to_local(), placement.dim, tuple(tensor.shape), tuple(tensor.stride()))
