"""The structure of a saved tree: placeholders where its tensors were, which DCP writes by their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from elastrain.elastic.checkpoint.writers import Writers
from elastrain.elastic.state.capture import is_dense
from elastrain.elastic.state.parts import Part

Path = tuple[Any, ...]
"""Of a leaf in a tree."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The placeholder of a tensor. Those of earlier versions have a name only."""

    name: str
    stride: tuple[int, ...] | None = None
    """If its elements fill one run of memory."""
    dtype: torch.dtype | None = None
    """If its bytes are written instead, since DCP writes no tensors of this type."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """That of a tensor that is sharded."""

    name: str
    dim: int
    """Over the ranks to which ``fully_shard`` has spread it. Another dimension may be cut too."""
    stride: tuple[int, ...]


def is_part(leaf: Any) -> bool:
    """For walks over a tree of which parts are leaves."""
    return isinstance(leaf, Part)


def name_of(path: Path) -> str:
    """``model/0.weight``."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)


def placeholder(path: Path, leaf: Any) -> Any:
    """Of a tensor or a part; anything else as it is.

    DCP itself would turn the integer keys of optimizer states into strings, which the optimizer ignores.
    """
    if isinstance(leaf, Part):
        dim = leaf.dims[0]
        assert dim is not None
        return Sharded(name_of(path), dim, leaf.stride)
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dense = leaf.stride() if is_dense(leaf) else None
    return Entry(name_of(path), dense, None if _is_written(leaf.dtype) else leaf.dtype)


def _is_written(dtype: torch.dtype) -> bool:
    """Whether DCP writes tensors of this type: it needs the size of an element."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return True
    try:
        torch.iinfo(dtype)
    except TypeError:
        return False
    return True


def divided(tree: Any, writers: Writers) -> Any:
    """``tree`` with placeholders for the tensors that other ``writers`` write. Ranks of the first shard write those
    that are not sharded."""
    sizes: dict[str, int] = {}

    def measure(path: Path, leaf: Any) -> Any:
        if writers.own(leaf.dims) if isinstance(leaf, Part) else isinstance(leaf, torch.Tensor) and writers.shard == 0:
            sizes[name_of(path)] = (leaf.local if isinstance(leaf, Part) else leaf).nbytes
        return leaf

    _pytree.tree_map_with_path(measure, tree, is_leaf=is_part)
    mine = writers.takes(sizes)

    def keep(path: Path, leaf: Any) -> Any:
        return leaf if name_of(path) in mine else placeholder(path, leaf)

    return _pytree.tree_map_with_path(keep, tree, is_leaf=is_part)
