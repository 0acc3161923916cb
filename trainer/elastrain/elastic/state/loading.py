"""Loads the state of one object, to the bit: a copy of a state is the state.

``Optimizer.load_state_dict`` of torch casts moments and master weights to the type of their parameter, and other
classes may drop or round what they load. Here an optimizer gets the tensors that were sent. Then the object's state is
compared with what was sent, entry by entry, before this rank counts as one that holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree

from elastrain.elastic.state import digest, parts

_COMPARED = (bool, int, float, complex, str, bytes, type(None))
"""Types of values that are compared; objects of others have no equality that all of them keep."""
_SHOWN = 3
"""Entries in a message."""


class NotTheSame(RuntimeError):
    """An object's state differs from the one that it has loaded."""


def load(name: str, obj: Any, state: Any, objects: Iterable[object]) -> None:
    """``obj.load_state_dict(state)``, with the values, types and shapes that ``state`` has.

    ``name``: of the object. ``state``: as of :func:`elastrain.elastic.state.parts.taken`. ``objects``: all that are
    tracked. Raises :class:`NotTheSame` naming the entries that differ, and the errors of ``load_state_dict``.
    """
    sent = fingerprints(state)  # first: the object may keep the tensors, and change them
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


def fingerprints(tree: Any) -> dict[str, str]:
    """Of each entry of a tree, by its path: type, shape and digest of a tensor, or the value. Objects have none."""
    leaves, _ = _pytree.tree_flatten_with_path(tree)
    return {_pytree.keystr(path): _fingerprint(leaf) for path, leaf in leaves if _is_compared(leaf)}


def _fingerprint(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{leaf.dtype} {tuple(leaf.shape)} {digest.of_tensor(leaf):x}"
    return repr(leaf)


def _is_compared(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or type(leaf) in _COMPARED


def _differing(sent: Mapping[str, str], obj: Any) -> str:
    """The entries of the object's state that are not as they were ``sent``; empty if all are."""
    loaded = fingerprints(parts.taken(obj.state_dict()))
    paths = [path for path, value in sent.items() if loaded.get(path) != value]
    if not paths:
        return ""
    again = fingerprints(parts.taken(obj.state_dict()))  # an entry that changes between two looks, a clock, is no state
    paths = [path for path in paths if path not in loaded or loaded[path] == again.get(path)]
    texts = [f"{path} is {_short(loaded.get(path))} instead of {_short(sent[path])}" for path in paths[:_SHOWN]]
    return "; ".join(texts) + (f"; and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def _short(value: str | None) -> str:
    return "missing" if value is None else value if len(value) < 100 else f"{value[:100]}…"


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
            device = next((x.device for x in _pytree.tree_leaves(home) if isinstance(x, torch.Tensor)), None)
            loaded[key] = _pytree.tree_map_only(torch.Tensor, lambda x, at=device: x.detach().to(at or x.device), value)
