"""Digests of what replicas hold alike: parameters, buffers, and the state and options of optimizers.

Other tracked objects are left out: a metric counts each rank's own samples. So are buffers that forward changes: the
statistics of a BatchNorm are each rank's own (docs/numerics.md). The warm-up shows them; one that changes later is
recognised by its version, which torch's kernels of normalisations do not raise: theirs are known by their class.

The digest of a tensor is made where it lies (:func:`elastrain.elastic.state.digest.of_tensors`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
import xxhash
from torch import nn

from elastrain.elastic.state import digest, parts
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.torch_private import Norm, pytree

LEFT_OUT = 0
"""The digest of an entry that may differ between replicas."""
_LARGEST = 2**63 - 2


class Entries:
    """Of one rank's tracked objects. For the training thread."""

    def __init__(self, tracked: Mapping[str, Stateful]) -> None:
        """``tracked`` is shared with the runtime."""
        self.own: set[str] = set()
        """Buffers that may differ between replicas: forward changes them here, or on another rank."""
        self._tracked = tracked
        self._versions: dict[str, tuple[int, int]] = {}

    def loaded(self) -> None:
        """The state was replaced, or a generation begins: what changed the buffers so far was not forward."""
        self._versions = {name: _version(buffer) for name, buffer in self._buffers()}
        self.leave_out(self._statistics())

    def leave_out(self, buffers: Iterable[torch.Tensor]) -> None:
        """The warm-up's forward has changed these buffers."""
        changed = {id(buffer) for buffer in buffers}
        self.own |= {name for name, buffer in self._buffers() if id(buffer) in changed}

    def digests(self, known: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
        """A 63-bit number for each entry of the present state, by name; :data:`LEFT_OUT` for one of :attr:`own`.

        Reads all tensors once, but those whose number is ``known``. On a device the host waits for it.
        """
        found: dict[str, int] = {}
        tensors: dict[str, torch.Tensor] = {}
        for name, value in self._values():
            if number := known.get(name, LEFT_OUT):
                found[name] = number
            elif not isinstance(value, torch.Tensor):
                found[name] = digest.of_value(value)
            else:
                found[name], tensors[name] = LEFT_OUT, value
        found.update(zip(tensors, digest.of_tensors([*tensors.values()]), strict=True))
        return found | dict.fromkeys(self.own, LEFT_OUT)

    def _values(self) -> Iterator[tuple[str, Any]]:
        for name, obj in self._tracked.items():
            if isinstance(obj, nn.Module):
                yield from ((f"{name}.{path}", local) for path, p in obj.named_parameters() for local in _local(p))
            elif isinstance(obj, torch.optim.Optimizer):
                yield from _of_optimizer(name, obj)
        for name, buffer in self._buffers():
            if self._versions.setdefault(name, _version(buffer)) != _version(buffer):
                self.own.add(name)
            yield from ((name, local) for local in _local(buffer) if name not in self.own)

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, obj in self._tracked.items():
            if isinstance(obj, nn.Module):
                yield from ((f"{name}.{path}", buffer) for path, buffer in obj.named_buffers())

    def _statistics(self) -> Iterator[torch.Tensor]:
        for obj in self._tracked.values():
            for module in obj.modules() if isinstance(obj, nn.Module) else ():
                if isinstance(module, Norm):
                    yield from module.buffers(recurse=False)


def combined(digests: Mapping[str, int]) -> int:
    """One positive 63-bit number for all entries, whose order is that of the script. Pure."""
    names = "\n".join(name for name, number in digests.items() if number != LEFT_OUT)
    numbers = array("q", [number for number in digests.values() if number != LEFT_OUT])
    return 1 + xxhash.xxh3_64_intdigest(numbers.tobytes() + names.encode()) % _LARGEST


def _local(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """This rank's part of a tensor; nothing of a sparse one."""
    mine = parts.local_of(tensor)
    if mine.layout is torch.strided and not mine.is_meta:
        yield mine


def _of_optimizer(name: str, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """The state of each parameter, by its number as in ``state_dict()``, and the numbers among the groups' options."""
    number = 0
    for place, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            if option != "params":
                yield from _leaves(f"{name}.param_groups[{place}].{option}", value)
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            for key, value in state.items() if isinstance(state, dict) else ():
                yield from _leaves(f"{name}.state[{number}].{key}", value)
            number += 1


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield from ((name, local) for local in _local(value))
    elif isinstance(value, bool | int | float):
        yield name, float(value)
    elif isinstance(value, dict | list | tuple):
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor | int | float):
                yield from _leaves(name + pytree.keystr(path), leaf)


def _version(buffer: torch.Tensor) -> tuple[int, int]:
    """Changes with each change in place, and if the place has another tensor."""
    return id(buffer), -1 if buffer.is_inference() else buffer._version
