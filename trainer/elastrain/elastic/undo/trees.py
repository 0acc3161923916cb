"""What a loop body begins with: copies of the state of objects, whose tensors stand apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from elastrain.elastic.state.host_copy import Copied

PLAIN = frozenset((int, float, bool, str, bytes, complex, type(None)))


class Frozen(NamedTuple):
    """A copy of a tree."""

    tree: Any
    """With an :class:`_At` for each tensor."""
    at: slice
    """Where these are in a list."""

    def thawed(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The tree with those of ``tensors`` in its places; it shares nothing else with the copy."""
        own = tensors[self.at]
        return _mapped(self.tree, lambda leaf: own[leaf.number] if isinstance(leaf, _At) else deepcopy(leaf))


class _At(NamedTuple):
    number: int


def frozen(tree: Any, tensors: list[torch.Tensor]) -> Frozen:
    """A copy of ``tree``; its tensors are added to ``tensors``."""
    start = len(tensors)

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return deepcopy(leaf)
        tensors.append(leaf)
        return _At(len(tensors) - 1 - start)

    copy = _mapped(tree, copied)
    return Frozen(copy, slice(start, len(tensors)))


def _mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy of ``tree``, with each leaf that may change replaced by ``leaf(of it)``."""
    kind = type(tree)
    if kind in PLAIN:
        return tree
    if kind is dict:
        return {key: _mapped(value, leaf) for key, value in tree.items()}
    if kind is list or kind is tuple:
        return kind([_mapped(value, leaf) for value in tree])
    if isinstance(tree, dict):
        copy = tree.copy()
        for key, value in tree.items():
            copy[key] = _mapped(value, leaf)
        return copy
    return leaf(tree)


def equal(one: Any, other: Any) -> bool:
    """Whether they are, as far as that has an answer."""
    try:
        return bool(one == other)
    except Exception:  # arrays have no one answer
        return False


# -- optimizers and modules ------------------------------------------------------------------------------------------
def look(optimizer: torch.optim.Optimizer) -> list[Any]:
    """All in its state."""
    return [v for of_p in optimizer.state.values() for v in (of_p.values() if isinstance(of_p, dict) else (of_p,))]


def same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether nothing has come, gone or been replaced between two looks."""
    pairs = zip(before, now, strict=False)
    return len(before) == len(now) and all(a is b or (type(a) in PLAIN and a == b) for a, b in pairs)


_OF_ANY = vars(nn.Module()).keys()


def attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """What code has set in ``module``, beside what each module has; with a copy of a collection."""
    values = {key: value for key, value in vars(module).items() if key not in _OF_ANY}
    return {key: (v, v.copy() if isinstance(v, dict | list | set | deque) else None) for key, v in values.items()}


def put_back(module: nn.Module, before: dict[str, tuple[Any, Any]]) -> None:
    """Give ``module`` its :func:`attributes` again, and no others."""
    now = vars(module)
    for key in now.keys() - before.keys() - _OF_ANY:
        del now[key]
    for key, (value, content) in before.items():
        now[key] = value
        if content is not None:
            value.clear()
            (value.update if isinstance(value, dict | set) else value.extend)(content)


@dataclass(slots=True)
class Begun:
    """What a body began with."""

    whole: bool = False
    """All leaves have a copy."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    """The leaves: parameters, buffers, those of other objects, then those of optimizers that have no copy."""
    names: list[str] = field(default_factory=list)
    """Theirs; of those of other objects, the object's."""
    versions: list[int] = field(default_factory=list)
    walked: list[int] = field(default_factory=list)
    """Those of parameters and buffers, behind the last gated call."""
    copied: list[int] = field(default_factory=list)
    """Numbers of those that have a copy."""
    values: Copied = field(default_factory=lambda: Copied([]))
    groups: list[tuple[Any, list[tuple[dict[str, Any], list[Any]]], Frozen]] = field(default_factory=list)
    """Of optimizers: the groups, with their parameters; and the options."""
    states: list[tuple[torch.optim.Optimizer, Frozen]] = field(default_factory=list)
    """Of optimizers whose state is copied: that of each parameter."""
    looks: list[tuple[str, torch.optim.Optimizer, list[Any]]] = field(default_factory=list)
    """Of the others: as of :func:`look`."""
    objects: list[tuple[str, Any, Frozen]] = field(default_factory=list)
    """Of other objects: their state."""
    trains: list[bool] = field(default_factory=list)
    """Of each parameter: whether it requires a gradient."""
    modes: list[bool] = field(default_factory=list)
    """Of each module: whether it trains."""
    attributes: list[tuple[nn.Module, dict[str, tuple[Any, Any]]]] = field(default_factory=list)
    """Of modules that own buffers."""
    by_data: set[int] = field(default_factory=set)
    """As of :func:`uses_of_data`, of the script's own code."""
    open: bool = False
    """The body runs."""
    updated: bool = False
    """A gated call has changed leaves."""
