"""Plain attributes of an object of a framework: counters, sums and lists, which a body that does not count has changed
for nothing."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from elastrain.elastic.torch_private import pytree

OF_MODULES = frozenset(vars(nn.Module()))
DATA = ("train_dataset", "eval_dataset")


def plain_attributes(obj: Any, *, tensors: bool = True) -> dict[str, Any]:
    """A copy of them, as the counters and sums of transformers' loop (``_tr_loss``), and those of derived classes.
    ``tensors``: also of those that have some."""
    return {name: _copied(value) for name, value in _plain_of(obj, tensors=tensors).items()}


def put_back(obj: Any, before: dict[str, Any], *, tensors: bool = True) -> None:
    """Undo what a body that does not count has done to them."""
    for name in _plain_of(obj, tensors=tensors):
        del vars(obj)[name]
    vars(obj).update(before)


def _plain_of(obj: Any, *, tensors: bool) -> dict[str, Any]:
    return {n: v for n, v in vars(obj).items() if is_plain(n, v) and (tensors or not has_tensors(v))}


def has_tensors(value: Any) -> bool:
    """Whether a tree of values does."""
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def is_plain(name: str, value: Any) -> bool:
    """Whether an attribute is one."""
    return name not in DATA and name not in OF_MODULES and _plain(value)


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_plain(k) and _plain(v) for k, v in value.items())
    if isinstance(value, list | tuple | set):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone() if value.grad_fn is None else value  # one with a graph is a result, and stays as it is
    if type(value) is dict:
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) in (list, set):
        return type(value)(map(_copied, value))
    return copy.deepcopy(value) if isinstance(value, dict | list | set) else value
