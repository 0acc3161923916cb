"""Sparse tensors in a tree of state: as the dense tensors that they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree


@dataclass(frozen=True, slots=True)
class Sparse:
    """A node of the tree, in the place of a sparse tensor."""

    tensors: tuple[Any, ...]
    """Indices and values (COO), or compressed indices, plain indices and values."""
    layout: torch.layout
    shape: tuple[int, ...]
    coalesced: bool = False
    """Of COO: whether no index occurs twice."""


_pytree.register_pytree_node(
    Sparse,
    lambda node: ([*node.tensors], (node.layout, node.shape, node.coalesced)),
    lambda children, context: Sparse(tuple(children), *context),
    serialized_type_name="elastrain.elastic.state.sparse.Sparse",
    flatten_with_keys_fn=lambda node: (
        [(_pytree.SequenceKey(number), tensor) for number, tensor in enumerate(node.tensors)],
        (node.layout, node.shape, node.coalesced),
    ),
)


def take(tensor: torch.Tensor) -> Sparse:
    """The node for a sparse tensor, with the live tensors."""
    shape = tuple(tensor.shape)
    if tensor.layout == torch.sparse_coo:
        return Sparse((tensor._indices(), tensor._values()), tensor.layout, shape, tensor.is_coalesced())
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (
        (tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())
    )
    return Sparse((*indices, tensor.values()), tensor.layout, shape)


def put(tree: Any) -> Any:
    """``tree`` with a sparse tensor for each node."""
    return _pytree.tree_map_only(Sparse, _assemble, tree, is_leaf=_is_node)


def _assemble(node: Sparse) -> torch.Tensor:
    if node.layout == torch.sparse_coo:
        indices, values = node.tensors
        return torch.sparse_coo_tensor(indices, values, node.shape, is_coalesced=node.coalesced, check_invariants=True)
    return torch.sparse_compressed_tensor(*node.tensors, size=node.shape, layout=node.layout, check_invariants=True)


def _is_node(leaf: Any) -> bool:
    return isinstance(leaf, Sparse)
