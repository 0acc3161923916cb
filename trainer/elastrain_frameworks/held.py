"""State beside the trained model that callbacks, or a derived class, hold in attributes: a teacher, a reference model,
an average of the weights. It is tracked, or refused by name."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import structlog
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from elastrain.elastic.state.capture import HIDDEN, capture, copied, restore
from elastrain.elastic.state.digest import same_bits
from elastrain.elastic.torch_private import pytree
from elastrain_frameworks.arrives import track_next
from elastrain_frameworks.attributes import DATA, OF_MODULES, has_tensors, is_plain

log = structlog.get_logger(__name__)
_OTHERS = torch.optim.Optimizer, torch.amp.GradScaler, LRScheduler, DataLoader, Dataset
"""Tracked by adapters, or data."""


class Held:
    """Of one training run."""

    def __init__(
        self, owners: Iterable[Any], models: Iterable[nn.Module], *, carried: Iterable[Any], known: Iterable[Any] = ()
    ) -> None:
        """``models``: those that are tracked. ``carried``: owners whose plain attributes are, or what they export.
        ``known``: other objects that are no state of their owner."""
        self._owners, self._carried = [*owners], {id(each) for each in carried}
        parts = [part for model in models for part in model.modules()]
        self._known = {id(each) for each in (*parts, *known, *self._owners)}
        self.tracked: dict[str, Any] = {}
        """To be tracked, by name."""
        for name, value in self._found():
            taken = sum(each.rstrip("_") == name for each in self.tracked)
            self.tracked[name + "_" * taken] = value
        self._checked = False

    def _found(self) -> Iterator[tuple[str, Any]]:
        for owner in self._owners:
            of = type(owner).__name__
            for name, value in [*vars(owner).items()]:
                for place, each in _within(name, value) if name not in OF_MODULES and name not in DATA else ():
                    if id(each) not in self._known and _has_state(each):
                        self._known.add(id(each))
                        yield f"{of}_{place}", _StandIn(each)
                if id(owner) not in self._carried and is_plain(name, value) and has_tensors(value):
                    yield f"{of}_{name}", _Attribute(owner, name)

    def say_what_is_taken(self) -> None:
        """A warm-up has run. What it changes in other attributes is put back, or comes with the job's state."""
        kinds = Iterator, torch.Generator, random.Random, np.random.Generator
        of = ((type(owner).__name__, name, value) for owner in self._owners for name, value in vars(owner).items())
        if taken := [f"{owner}.{name}" for owner, name, value in of if isinstance(value, kinds)]:
            log.warning("the warm-up cannot give back what it has taken from iterators", attributes=taken)

    def check(self) -> None:
        """The hooks of a first step have run. Raises ``ValueError`` for an object that they have made."""
        if self._checked:
            return
        self._checked = True
        late = [name for name, value in self._found() if not isinstance(value, _Attribute)]
        if late:
            raise ValueError(
                f"{', '.join(late)}: made when training had begun, so that joiners would not receive its state: make "
                "it in __init__(), where the job sees it; or keep what needs no state out of attributes"
            )


class Received:
    """What has come with a peer's state. The framework's events of that step follow, and must not change it again."""

    def __init__(self, objects: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
        self._objects, self._optimizer = objects, optimizer
        self._state = copied(capture(objects))
        self._options = deepcopy([{**group, "params": []} for group in optimizer.param_groups])

    def put_back(self) -> None:
        """An event has been called."""
        now = capture(self._objects)
        for name, obj in self._objects.items():
            mine = {key: state for key, state in self._state.items() if key.removesuffix(HIDDEN) == name}
            if not all(same(now.get(key), state) for key, state in mine.items()):
                restore({name: obj}, copied(mine))
        for group, options in zip(self._optimizer.param_groups, deepcopy(self._options), strict=True):
            group.update({**options, "params": group["params"]})


class _Attribute:
    """A plain attribute that has tensors."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name

    def state_dict(self) -> dict[str, Any]:
        return {"value": detached(vars(self._owner).get(self._name))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self._owner)[self._name] = state["value"]


class _StandIn:
    """Tracked in place of ``value``, which may be a model of which parameters could train."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def state_dict(self) -> Any:
        return self._value.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._value.load_state_dict(state)


def track_prepared(job: Any, before: int, model: nn.Module) -> None:
    """Track one that does not train, such as a teacher: the first as ``prepared``, the second as ``prepared1``."""
    track_next(job, "prepared", before, _StandIn(model))


def detached(tree: Any) -> Any:
    """The same without graphs."""
    return pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, tree)


def _within(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{name}_{key}", each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{name}_{i}", each) for i, each in enumerate(value))
    else:
        yield name, value


def _has_state(value: Any) -> bool:
    calls = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return isinstance(value, nn.Module) or (
        not isinstance(value, type) and not isinstance(value, _OTHERS) and all(map(callable, calls))
    )


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit."""
    (mine, shape), (its, of_other) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    return shape == of_other and all(
        same_bits(a, b)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else type(a) is type(b) and a == b
        for a, b in zip(mine, its, strict=True)
    )
