"""The training state as one tree: captured from the tracked objects, described, restored to the bit.

Every object with ``state_dict`` and ``load_state_dict`` can be tracked. ``Optimizer.load_state_dict`` of torch casts
moments and master weights to the type of their parameter, and other classes may drop or round what they load. Here an
optimizer gets the tensors that were sent. Then the object's state is compared with what was sent, entry by entry,
before this rank counts as one that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from elastrain.elastic.encoding.leaves import is_dense
from elastrain.elastic.state import buffers, digest, parts
from elastrain.elastic.torch_private import pytree

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


def restore(
    tracked: Mapping[str, Stateful], state: dict[str, Any], *, missing: Callable[[Any], bool] = lambda _leaf: False
) -> None:
    """Load ``state`` into the tracked objects, to the bit. ``missing(leaf)``: its content has not arrived yet.

    What has arrived in the memory of the object itself was compared on its way, and is not read again.
    Raises ``ValueError`` naming the entries that only one side has: a skipped optimizer would train on with its own
    state; and :class:`NotTheSame`.
    """
    hidden = {name.removesuffix(HIDDEN): tree for name, tree in state.items() if name.endswith(HIDDEN)}
    state = {name: tree for name, tree in state.items() if not name.endswith(HIDDEN)}
    if lacking := sorted(tracked.keys() - state.keys()):
        raise ValueError(f"the saved state has no entry for tracked {', '.join(lacking)}; it has {sorted(state)}")
    if surplus := sorted(state.keys() - tracked.keys()):
        raise ValueError(f"the saved state has {', '.join(surplus)}, which this script does not track (job.track)")
    optimizers = [obj for obj in tracked.values() if isinstance(obj, torch.optim.Optimizer)]
    shared = [(a, b) for a in optimizers for b in optimizers if a is not b and a.param_groups is b.param_groups]
    for name, obj in tracked.items():
        load(name, obj, state[name], tracked.values(), missing)
        if isinstance(obj, nn.Module) and name in hidden:
            buffers.put(obj, parts.put_sparse(hidden[name]))
    for inner, outer in shared:  # an optimizer within another one comes first
        inner.param_groups = outer.param_groups


def structure(tree: Any) -> int:
    """A positive 63-bit number for the names, types and shapes of the tree's tensors.

    Ranks with equal numbers can each send a part of their state to the same receiver.
    """
    leaves, _ = pytree.tree_flatten_with_path(tree)
    described = [(pytree.keystr(path), slot(leaf)) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    return digest.of_value(described)


def copied(tree: Any, *, device: str | None = None) -> Any:
    """A copy that shares no memory with ``tree``. ``device``: of its tensors; default: that of the copied ones."""
    return pytree.tree_map(lambda leaf: copy_of(leaf, None, device), tree)


def copy_of(leaf: Any, home: Any = None, device: str | None = None) -> Any:
    """A copy of one leaf, as of :func:`copied`. ``home``: the leaf of an earlier copy that is no longer needed: the
    first write to each page of new memory would take longer than the copy itself."""
    if not isinstance(leaf, torch.Tensor):
        return deepcopy(leaf)
    if home is not None and _alike(home, leaf):
        return home.copy_(leaf.detach())
    return leaf.detach().to(device or leaf.device, copy=True)


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


# -- load one object -------------------------------------------------------------------------------------------------
_COMPARED = (bool, int, float, complex, str, bytes, type(None))
"""Types of values that are compared; objects of others have no equality that all of them keep."""
_COPIED_BYTES = 64 * 2**10
"""Up to this size a tensor is copied before an object loads it, which may keep and change it."""
_SHOWN = 3
"""Entries in a message."""


class NotTheSame(RuntimeError):
    """An object's state differs from the one that it has loaded."""


def load(
    name: str, obj: Any, state: Any, objects: Iterable[object], missing: Callable[[Any], bool] = lambda _: False
) -> None:
    """``obj.load_state_dict(state)``, with the values, types and shapes that ``state`` has.

    ``name``: of the object. ``state``: as of :func:`elastrain.elastic.state.parts.taken`. ``objects``: all that are
    tracked. ``missing``: as of :func:`restore`. Raises :class:`NotTheSame` naming the entries that differ, and the
    errors of ``load_state_dict``.
    """
    sent = {path: leaf for path, leaf in _entries(state).items() if not missing(leaf)}
    sent = {path: leaf if getattr(leaf, "nbytes", 0) > _COPIED_BYTES else copy_of(leaf) for path, leaf in sent.items()}
    tree = parts.put(state, obj, objects)
    own = _states(obj)
    obj.load_state_dict(tree)
    if (differing := _differing(sent, obj)) and isinstance(obj, torch.optim.Optimizer):
        _put_back(obj, tree, own)
        differing = _differing(sent, obj)
    if differing:
        raise NotTheSame(
            f"job.track({name}=…): after {type(obj).__name__}.load_state_dict() the state is not the one that was "
            f"loaded: {differing}. A joining worker would train another model: state_dict() must return all that "
            "load_state_dict() takes, unchanged"
        )


def _entries(tree: Any) -> dict[str, Any]:
    """The tensors and values of a tree that are compared, by path."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    compared = ((path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor) or type(leaf) in _COMPARED)
    return {pytree.keystr(path): leaf for path, leaf in compared}


def _differing(sent: Mapping[str, Any], obj: Any) -> str:
    """The entries of the object's state that are not as they were ``sent``; empty if all are."""
    loaded = _entries(parts.taken(obj.state_dict()))
    paths = [path for path, leaf in sent.items() if path not in loaded or not _same(leaf, loaded[path])]
    if not paths:
        return ""
    again = _entries(parts.taken(obj.state_dict()))  # an entry that changes between two looks, a clock, is no state
    paths = [path for path in paths if path not in loaded or _same(loaded[path], again.get(path))]
    texts = [f"{path} is {_text(loaded, path)} instead of {_text(sent, path)}" for path in paths[:_SHOWN]]
    return "; ".join(texts) + (f"; and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return digest.same_bits(one, other)
    return repr(one) == repr(other)


def _text(entries: Mapping[str, Any], path: str) -> str:
    if path not in entries:
        return "missing"
    leaf = entries[path]
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf) if len(repr(leaf)) < 100 else f"{repr(leaf)[:100]}…"
    return f"{leaf.dtype} {tuple(leaf.shape)} {digest.of_tensors([leaf])[0]:x}"


# -- optimizers --------------------------------------------------------------------------------------------------------
def _states(obj: Any) -> dict[Any, dict[Any, Any]]:
    """The optimizer's state of each parameter, as it is now."""
    if not isinstance(obj, torch.optim.Optimizer):
        return {}
    return {key: dict(state) for key, state in obj.state.items() if isinstance(state, dict)}


def _put_back(optimizer: torch.optim.Optimizer, tree: Any, before: Mapping[Any, Mapping[Any, Any]]) -> None:
    """Put the values of ``tree``, which the optimizer has loaded, in place of those that it has cast.

    They lie on the device on which the optimizer had them ``before``, or where it has placed them now.
    """
    numbers = [number for group in tree.get("param_groups", ()) for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=False):
        sent, loaded = tree["state"].get(number), optimizer.state.get(parameter)
        if not isinstance(sent, dict) or not isinstance(loaded, dict):
            continue
        for key, value in sent.items():
            home = before.get(parameter, {}).get(key, loaded.get(key))
            device = next((x.device for x in pytree.tree_leaves(home) if isinstance(x, torch.Tensor)), None)
            loaded[key] = pytree.tree_map_only(torch.Tensor, lambda x, at=device: x.detach().to(at or x.device), value)
