"""Sharded tensors (``DTensor``) and sparse ones in a tree of state: as nodes that contain plain tensors.

The state moves between ranks that hold the same part of a sharded tensor, so only the local tensor travels, with what
is needed to make a ``DTensor`` of it again: parameters and their optimizer state arrive as the optimizer of the
receiver expects them.

A tensor lies on the dimension of ``job.mesh`` over which ``fully_shard`` spreads it, and on those over which
``parallelize_module`` or the script has cut it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import torch
from torch import nn

from elastrain.elastic.torch_private import pytree, strided_shard

Dims = tuple[tuple[str, int | None], ...]
"""By dimension of the mesh on which a tensor lies: its name, and the dimension of the tensor that is sharded over it;
None: none is."""


@dataclass(frozen=True, slots=True)
class Part:
    """A node of the tree, with one child."""

    local: Any
    """The local tensor, or what stands for it."""
    dims: Dims
    shape: tuple[int, ...]
    """Of the whole tensor."""
    stride: tuple[int, ...]


def _flatten(part: Part) -> tuple[list[Any], Any]:
    return [part.local], (part.dims, part.shape, part.stride)


pytree.register_pytree_node(
    Part,
    _flatten,
    lambda children, context: Part(*children, *context),
    serialized_type_name="elastrain.elastic.state.parts.Part",
    flatten_with_keys_fn=lambda part: ([(pytree.GetAttrKey("local"), part.local)], _flatten(part)[1]),
)


def taken(tree: Any) -> Any:
    """``tree`` with a :class:`Part` for each ``DTensor``, and a node for each sparse tensor. Tensors are the live ones.

    Negated and conjugated views, which have no memory of their own, are copied.
    """
    return pytree.tree_map_only(torch.Tensor, _take, tree)


def emptied(tree: Any) -> Any:
    """As :func:`taken`, with the type of each local tensor in its place: what the tensors hold travels otherwise."""
    return pytree.tree_map_only(Part, lambda p: replace(p, local=p.local.dtype), taken(tree), is_leaf=_is_part)


def put(tree: Any, home: Any, objects: Iterable[object]) -> Any:
    """The reverse of :func:`taken` or :func:`emptied`, for ``objects`` of which a module is sharded.

    An emptied part becomes the sharded tensor that ``home``, the object that the tree is for, has in its place; or a
    new one.
    """
    tree = put_sparse(tree)
    if not any(isinstance(leaf, Part) for leaf in pytree.tree_leaves(tree, is_leaf=_is_part)):
        return tree
    from torch.distributed.tensor import DTensor

    meshes = {
        p.device_mesh.mesh_dim_names: p.device_mesh
        for obj in objects
        if isinstance(obj, nn.Module)
        for p in obj.parameters()
        if isinstance(p, DTensor)
    }
    own = dict(pytree.tree_flatten_with_path(home.state_dict())[0])

    def assemble(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, Part):
            return leaf
        mesh = meshes[tuple(name for name, _ in leaf.dims)]
        if not isinstance(local := leaf.local, torch.Tensor):
            mine = own.get(path)
            if isinstance(mine, DTensor) and tuple(mine.shape) == leaf.shape and mine.dtype == local:
                return mine
            ((_, dim),) = leaf.dims
            assert dim is not None
            start, stop = bounds(leaf.shape[dim], mesh.size(), mesh.get_coordinate()[0])
            shape = [*leaf.shape[:dim], stop - start, *leaf.shape[dim + 1 :]]
            local = torch.zeros(shape, dtype=local)
        local = local.to(mesh.device_type)  # a state that was kept apart arrives on the host
        return DTensor.from_local(
            local,
            mesh,
            _placements(leaf.dims, mesh.shape),
            run_check=False,
            shape=torch.Size(leaf.shape),
            stride=leaf.stride,
        )

    return pytree.tree_map_with_path(assemble, tree, is_leaf=_is_part)


def dims_of(objects: Mapping[str, object], path: tuple[Any, ...], shape: Sequence[int]) -> Dims | None:
    """The dimensions along which this rank's model shards the tensor at ``path`` of the tracked ``objects``; None: it
    is whole.

    For a state that was saved whole: parameters go by their names, and a tensor of an optimizer is sharded like the
    parameter to which it belongs, if it has that shape.
    """
    keys = [getattr(key, "key", getattr(key, "idx", None)) for key in path]
    if keys[:2] == ["kept", "gradients"]:  # a gradient is sharded like its parameter
        keys = ["tracked", *keys[2:]]
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
    return dims(parameter.data)


def bounds(rows: int, shards: int, shard: int) -> tuple[int, int]:
    """The first row that ``shard`` of ``shards`` holds, and the one after its last, of a tensor of ``rows`` rows."""
    height = -(-rows // shards)
    return min(shard * height, rows), min((shard + 1) * height, rows)


def dims(tensor: Any) -> Dims:
    """Of a ``DTensor``: as of :attr:`Part.dims`."""
    over = [getattr(placement, "dim", None) for placement in tensor.placements]
    return tuple(zip(tensor.device_mesh.mesh_dim_names, over, strict=True))


def local_of(tensor: Any) -> torch.Tensor:
    """This rank's part of it."""
    mine: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return mine


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether it is a ``DTensor``. By the module of its class: importing DTensor would delay the start of every job."""
    return type(tensor).__module__.startswith("torch.distributed.tensor")


def _is_part(leaf: Any) -> bool:
    return isinstance(leaf, Part)


def _take(tensor: Any) -> Any:
    if not is_sharded(tensor):
        return tensor.resolve_conj().resolve_neg() if tensor.layout == torch.strided else _take_sparse(tensor)
    return Part(tensor.to_local(), dims(tensor), tuple(tensor.shape), tuple(tensor.stride()))


def _placements(dims: Dims, sizes: Sequence[int]) -> list[Any]:
    """``sizes``: of the mesh. The tensor is cut over the last dimension of the mesh first."""
    from torch.distributed.tensor import Replicate, Shard

    placements: list[Any] = []
    for number, (_, dim) in enumerate(dims):
        later = zip(sizes[number + 1 :], dims[number + 1 :], strict=True)
        cut = prod(size for size, (_, other) in later if other == dim)
        whole = dim is None
        placements.append(Replicate() if whole else Shard(dim) if cut == 1 else strided_shard(dim, split_factor=cut))
    return placements


# -- sparse ones -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Sparse:
    """A node of the tree, in the place of a sparse tensor."""

    tensors: tuple[Any, ...]
    """Indices and values (COO), or compressed indices, plain indices and values."""
    layout: torch.layout
    shape: tuple[int, ...]
    coalesced: bool = False
    """Of COO: whether no index occurs twice."""


pytree.register_pytree_node(
    Sparse,
    lambda node: ([*node.tensors], (node.layout, node.shape, node.coalesced)),
    lambda children, context: Sparse(tuple(children), *context),
    serialized_type_name="elastrain.elastic.state.parts.Sparse",
    flatten_with_keys_fn=lambda node: (
        [(pytree.SequenceKey(number), tensor) for number, tensor in enumerate(node.tensors)],
        (node.layout, node.shape, node.coalesced),
    ),
)


def _take_sparse(tensor: torch.Tensor) -> Sparse:
    """The node for a sparse tensor, with the live tensors."""
    shape = tuple(tensor.shape)
    if tensor.layout == torch.sparse_coo:
        return Sparse((tensor._indices(), tensor._values()), tensor.layout, shape, tensor.is_coalesced())
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (
        (tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())
    )
    return Sparse((*indices, tensor.values()), tensor.layout, shape)


def put_sparse(tree: Any) -> Any:
    """``tree`` with a sparse tensor for each node."""
    return pytree.tree_map_only(Sparse, _assemble_sparse, tree, is_leaf=_is_sparse)


def _assemble_sparse(node: Sparse) -> torch.Tensor:
    if node.layout == torch.sparse_coo:
        indices, values = node.tensors
        return torch.sparse_coo_tensor(indices, values, node.shape, is_coalesced=node.coalesced, check_invariants=True)
    return torch.sparse_compressed_tensor(*node.tensors, size=node.shape, layout=node.layout, check_invariants=True)


def _is_sparse(leaf: Any) -> bool:
    return isinstance(leaf, Sparse)
