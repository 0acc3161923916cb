"""Values in the script's variables, as one tracked object: in the frames that run, in modules, in its own objects.

The runtime gives them to joiners, keeps them in checkpoints, and puts them back behind a body that does not count, as
any tracked state. They are read and written where they are.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from elastrain_exec.live import is_live
from elastrain_exec.refusals import Scripts
from elastrain_exec.text import FACTS

PLAIN = (int, float, complex, bool, str, bytes, type(None))
CONTAINERS = (list, tuple, set, deque, dict, OrderedDict, defaultdict)
MOST_ELEMENTS = 64
"""Of a collection of objects, that are looked into."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is."""

    value: Any
    put: Callable[[Any], object]
    """Sets another one there."""
    whole: bool = False
    """The value is a description: it is set, and not filled."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """What loops change and nothing carries."""

    name: str
    kind: str
    file: str
    line: int


class Variables:
    """Of this process."""

    def __init__(self, known: Callable[[Any], bool]) -> None:
        """``known(obj)``: its state moves with the job in another way, or stays what it is."""
        self.frame: FrameType | None = None
        """Where the training loop takes its next batch; None between loops."""
        self.lacking: dict[str, Lacking] = {}
        self._known = known
        self._sizes: dict[str, int] = {}
        self._last: dict[str, Any] = {}

    # -- what is tracked
    def state_dict(self) -> dict[str, Any]:
        """The values by the path of their variable; between loops, those with which the last one ended."""
        if self.frame is not None:
            self._last = {path: taken(place.value) for path, place in self.places().items()}
        return dict(self._last)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the values where they belong; those of a variable that this process does not have are kept for later."""
        self._last = dict(state)
        if self.frame is None:
            return
        places = self.places()
        for path, value in state.items():
            if path in places:
                _put(places[path], value)

    def begin(self) -> None:
        """A loop begins: :attr:`lacking` is looked up anew."""
        self.lacking = {}
        self.state_dict()

    # -- where
    def places(self) -> dict[str, Place]:
        """By path."""
        walk = _Walk(self._known, self.lacking, self._sizes)
        frame = self.frame
        while frame is not None:
            code = frame.f_code
            if code.co_filename in Scripts.files and code.co_name != "<module>":
                names = FACTS.carried.get((code.co_filename, code.co_name), {})
                for name, value in list(frame.f_locals.items()):
                    at = (code.co_filename, names[name]) if name in names else None
                    walk.visit(f"{code.co_qualname}.{name}", value, partial(_set_local, frame, name), at)
            frame = frame.f_back
        for key in FACTS.modules:
            module = sys.modules.get(key)
            file = getattr(module, "__file__", None)
            if module is None or file not in Scripts.files:
                continue
            names = FACTS.carried.get((file, "<module>"), {})
            for name, value in list(vars(module).items()):
                if not name.startswith("__"):
                    at = (file, names[name]) if name in names else None
                    walk.visit(f"{key}.{name}", value, partial(vars(module).__setitem__, name), at)
        return walk.found


class _Walk:
    """From variables to the values that they reach."""

    def __init__(self, known: Callable[[Any], bool], lacking: dict[str, Lacking], sizes: dict[str, int]) -> None:
        """``sizes``: of collections of objects, as they were first seen."""
        self.found: dict[str, Place] = {}
        self._seen: set[int] = set()
        self._known, self._lacking, self._sizes = known, lacking, sizes

    def visit(self, path: str, value: Any, put: Callable[[Any], object], changed: tuple[str, int] | None) -> None:
        """``changed``: where the text changes it; None: it does not, and only objects in it are looked into."""
        if is_live(value):
            return
        if changed is not None and is_plain(value):
            self.found[path] = Place(value, put)
            if type(value) in CONTAINERS and not value:
                self._sizes.setdefault(path, 0)
        elif isinstance(value, torch.Generator):
            self.found[path] = Place(value.get_state(), value.set_state, whole=True)
        elif isinstance(value, random.Random):
            self.found[path] = Place(value.getstate(), value.setstate, whole=True)
        elif isinstance(value, np.random.Generator):
            self.found[path] = Place(
                value.bit_generator.state, partial(setattr, value.bit_generator, "state"), whole=True
            )
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif _has_attributes(value):
            self._attributes(path, value)
        elif type(value) in CONTAINERS and len(value) <= MOST_ELEMENTS and not is_plain(value):
            self._elements(path, value, changed)
        elif changed is not None and not self._known(value):
            self._lacking.setdefault(path, Lacking(path, type(value).__name__, *changed))

    def _elements(self, path: str, value: Any, changed: tuple[str, int] | None) -> None:
        """Of a collection of objects: the collection stays, what is in it is looked into."""
        if changed is not None and self._sizes.setdefault(path, len(value)) != len(value):
            self._lacking.setdefault(path, Lacking(path, f"{type(value).__name__} of objects, which grows", *changed))
        items = value.items() if isinstance(value, dict) else enumerate(value)
        objects = [(key, item) for key, item in items if not isinstance(item, PLAIN)]
        for key, item in objects:
            put = partial(value.__setitem__, key) if isinstance(value, list | dict) else _never
            inner = changed if isinstance(item, torch.Tensor) or type(item) in CONTAINERS else None
            self.visit(f"{path}[{key}]", item, put, inner)
        if changed is not None and len(objects) < len(value):
            self._lacking.setdefault(path, Lacking(path, f"{type(value).__name__} of several kinds", *changed))

    def _module(self, path: str, module: nn.Module) -> None:
        """One that no job wraps or tracks: a copy of the weights, a teacher. Its tensors go as they are."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        if not self._known(module):
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                self.found[f"{path}:{name}"] = Place(tensor.detach(), partial(_fill, tensor))
        for name, inner in module.named_modules():
            if type(inner).__module__ in FACTS.modules:
                self._attributes(f"{path}.{name}" if name else path, inner)

    def _attributes(self, path: str, obj: Any) -> None:
        if id(obj) in self._seen and not isinstance(obj, nn.Module):
            return
        self._seen.add(id(obj))
        for name, inner in list(vars(obj).items()):
            if isinstance(obj, nn.Module) and (name in _OF_MODULES or name.startswith("_")):
                continue
            self.visit(f"{path}.{name}", inner, partial(setattr, obj, name), FACTS.attributes.get(name))


_OF_MODULES = frozenset(vars(nn.Module()))


def _has_attributes(value: Any) -> bool:
    """Whether it is an object of a class of the script, or a namespace of options."""
    data = isinstance(value, type | torch.utils.data.Dataset | torch.utils.data.DataLoader | torch.optim.Optimizer)
    return type(value).__module__ in FACTS.modules and hasattr(value, "__dict__") and not data


def is_plain(value: Any) -> bool:
    """Whether the value travels: numbers, texts, arrays, tensors (without their graph), and collections of them."""
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and (value.grad_fn is not None or not value.requires_grad)
    if isinstance(value, defaultdict) and value.default_factory not in (int, float, list, dict, set):
        return False
    if type(value) in CONTAINERS:
        inner: Iterator[Any] = iter(value.values() if isinstance(value, dict) else value)
        keys = all(type(key) in PLAIN for key in value) if isinstance(value, dict) else True
        return keys and all(is_plain(item) for item in inner)
    return type(value) in PLAIN or isinstance(value, np.generic | np.ndarray)


def taken(value: Any) -> Any:
    """``value`` for the state: a copy, which shares the tensors; the runtime copies those where it has to."""
    shared = {id(tensor): tensor.detach() if tensor.grad_fn is not None else tensor for tensor in _tensors(value)}
    return deepcopy(value, dict(shared))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in CONTAINERS:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _put(place: Place, value: Any) -> None:
    """A collection keeps its identity: other variables may name it too."""
    old, new = place.value, taken(value)
    if place.whole:
        place.put(new)
    elif type(old) is type(new) is list:
        old[:] = new
    elif type(old) is type(new) and isinstance(old, dict | set | deque):
        old.clear()
        (old.extend if isinstance(old, deque) else old.update)(new)
    else:
        place.put(new)


def _fill(tensor: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        if tensor.data_ptr() != value.data_ptr() or tensor.shape != value.shape:
            tensor.copy_(value)


def _never(_value: Any) -> None:
    """An element of a tuple or set stays."""


def _set_local(frame: FrameType, name: str, value: Any) -> None:
    """Set a variable of a frame that runs. PEP 667 writes through from Python 3.13 on."""
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
