"""What a loop body changes of the tracked state beside its gated calls, and how it is put back.

Gates by the name of a method cannot be complete: SAM perturbs the weights by ``first_step()``, a WGAN clamps them, an
average may be kept by ``lerp_``, a script may set learning rates itself. The warm-up leaves no trace of any of them:
the state is copied before it, compared after it, and put back. Entries that the warm-up has changed are copied again at
the beginning of each step, for the case that its body is discarded. Other scripts pay for the warm-up only.

A body that updates the state before its last backward is one transaction, with a :class:`Snapshot` of all of the state.
If it is discarded, the whole body runs again: its forwards then compute with the same parameters, statistics and
schedules as the first time.

The snapshot is of all of the state, and not of what is updated before the last backward only: which backward is the
last is known when the body has ended, and no copy can be made then. It therefore lies where it takes no room from the
script: on devices only up to :data:`DEVICE_SHARE` of their memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from elastrain.elastic.state import capture
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.host_copy import Copied, HostCopy
from elastrain.elastic.state.tracked import is_scaler
from elastrain.elastic.state.trained import TrainedSet
from elastrain.elastic.torch_private import forget_stages, pytree

DEVICE_SHARE = 1 / 16
"""Part of a device's memory up to which it holds a copy of its own tensors. A larger copy lies in page-locked memory of
the host: a script that fills its device still fits, and its steps are long beside the copy."""
_SHOWN = 3
"""Entries in a message."""
Path = tuple[Any, ...]


class Trace:
    """Of the warm-up: the whole state before it, in the host's memory."""

    def __init__(self, tracked: Mapping[str, Stateful], trained: TrainedSet) -> None:
        """``trained``: the parameters that train, which the body may change."""
        self._tracked, self._trained, self._set = tracked, trained, trained.describe()
        self._before = capture.copied(capture.capture(tracked), device="cpu")
        self._modes = [(module, module.training) for module in _modules(tracked)]

    def remove(self) -> list[Path]:
        """Put the state back to the bit. Returns the paths of the entries that were changed.

        Raises ``RuntimeError`` naming the entries that cannot be put back.
        """
        for module, mode in self._modes:
            module.training = mode
        if self._trained.describe() != self._set:
            self._trained.adopt(self._set)
        changed = self._changed()
        if changed:
            names = _with_buffers({path[0].key for path in changed})
            _load(self._tracked, {name: tree for name, tree in self._before.items() if name in names})
            if left := self._changed():
                raise RuntimeError(
                    f"the loop body changes {_names(left)} in the warm-up of each process, and it cannot be put back: "
                    "change it under 'if job.committed:', or in a function given to job.on_commit()"
                )
        for obj in self._tracked.values():
            if is_scaler(obj):
                forget_stages(obj)
        self._before = None
        return changed

    def _changed(self) -> list[Path]:
        now = capture.capture(self._tracked)
        before, after = capture.fingerprints(self._before), capture.fingerprints(now)
        paths = {pytree.keystr(path): path for tree in (self._before, now) for path, _ in _leaves(tree)}
        return [path for name, path in paths.items() if before.get(name) != after.get(name)]


class Touched:
    """Of the steps: copies of the entries that the warm-up has changed."""

    def __init__(self, tracked: Mapping[str, Stateful], paths: list[Path]) -> None:
        self._tracked = tracked
        self._options = [path for path in paths if _is_option(tracked, path)]
        """Of groups of optimizers, as learning rates: looked up without a walk over the state."""
        self._others = {path for path in paths if path not in self._options}
        self._names = _with_buffers({path[0].key for path in self._others})
        self._copies: dict[Path, Any] = {}
        self._values: list[tuple[dict[str, Any], str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._options or self._others)

    def save(self) -> None:
        """A step begins."""
        self._values = []
        for name, _, number, key in self._options:
            groups = self._tracked[name.key].param_groups  # type: ignore[attr-defined]
            if number.idx < len(groups) and key.key in groups[number.idx]:
                group = groups[number.idx]
                self._values.append((group, key.key, deepcopy(group[key.key])))
        if self._others:
            leaves = dict(_leaves(self._present()))
            self._copies = {path: capture.copied(leaves[path]) for path in self._others if path in leaves}

    def restore(self) -> None:
        """The step was discarded."""
        for group, key, value in self._values:
            group[key] = value
        if self._others:
            leaves, spec = pytree.tree_flatten_with_path(self._present())
            put_back = [self._copies.get(path, leaf) for path, leaf in leaves]
            _load(self._tracked, pytree.tree_unflatten(put_back, spec))

    def _present(self) -> dict[str, Any]:
        return {name: tree for name, tree in capture.capture(self._tracked).items() if name in self._names}


def _load(tracked: Mapping[str, Stateful], state: dict[str, Any]) -> None:
    names = {name.removesuffix(capture.HIDDEN) for name in state}
    present = capture.capture({name: tracked[name] for name in names})
    capture.restore({name: tracked[name] for name in names}, {**present, **state})


def _with_buffers(names: set[str]) -> set[str]:
    plain = {name.removesuffix(capture.HIDDEN) for name in names}
    return plain | {name + capture.HIDDEN for name in plain}


def _leaves(tree: Any) -> Iterator[tuple[Path, Any]]:
    yield from pytree.tree_flatten_with_path(tree)[0]


def _is_option(tracked: Mapping[str, Stateful], path: Path) -> bool:
    optimizer = isinstance(tracked.get(getattr(path[0], "key", "")), torch.optim.Optimizer)
    return optimizer and len(path) == 4 and getattr(path[1], "key", "") == "param_groups"


def _modules(tracked: Mapping[str, Stateful]) -> Iterator[nn.Module]:
    for obj in tracked.values():
        if isinstance(obj, nn.Module):
            yield from obj.modules()


def _names(paths: list[Path]) -> str:
    shown = ", ".join(f"{path[0].key}{pytree.keystr(path[1:])}" for path in paths[:_SHOWN])
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


class Snapshot:
    """A copy of the state of all tracked objects: on their devices, or on the host if one of them is
    :func:`crowded`."""

    def __init__(self, tracked: Mapping[str, Stateful], trained: TrainedSet) -> None:
        """``trained``: the parameters that train, which the body may change."""
        self._tracked, self._trained = tracked, trained
        self._on_devices: Any = None
        self._host = HostCopy()
        self._on_host: Copied | None = None
        self._devices: dict[Path, torch.device] = {}
        """Those of the copied tensors."""
        self._set = ""

    def save(self) -> None:
        """Copy the state: a loop body begins."""
        self._set = self._trained.describe()
        state, sizes = capture.capture(self._tracked), Counter[torch.device]()
        tensors = [(path, leaf) for path, leaf in _leaves(state) if isinstance(leaf, torch.Tensor)]
        for _, leaf in tensors:
            sizes[leaf.device] += leaf.nbytes
        if any(crowded(nbytes, _memory_of(device)) for device, nbytes in sizes.items()):
            self._devices = {path: leaf.device for path, leaf in tensors}
            self._on_devices, self._on_host = None, self._host.take(state)
        else:
            self._on_devices, self._on_host = capture.copied(state, self._on_devices), None

    def restore(self) -> None:
        """Put the copy back: the body was discarded. Objects may keep its tensors that lie on devices."""
        self._trained.adopt(self._set)
        if self._on_host is None:
            copy, self._on_devices = self._on_devices, None
        else:
            copy = self._brought_back(self._on_host.complete())
        capture.restore(self._tracked, copy)
        for obj in self._tracked.values():
            if is_scaler(obj):
                forget_stages(obj)

    def _brought_back(self, copy: Any) -> Any:
        """A copy on the host, written to where the objects have their tensors now: a second state may not fit there."""
        present, written = dict(_leaves(capture.capture(self._tracked))), set[int]()

        def bring(path: Path, leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return deepcopy(leaf)
            home, device = present.get(path), self._devices[path]
            if not isinstance(home, torch.Tensor) or _form(home) != (device, *_form(leaf)[1:]):
                return leaf.to(device, copy=True)
            if home.data_ptr() in written:  # two entries have come to share it
                return leaf.to(device, copy=True)
            written.add(home.data_ptr())
            return home.detach().copy_(leaf)

        return pytree.tree_map_with_path(bring, copy)


def crowded(nbytes: int, memory: int | None) -> bool:
    """Whether a device with ``memory`` bytes has no room for a copy of ``nbytes``; None: it is the host. Pure."""
    return memory is not None and nbytes > DEVICE_SHARE * memory


def _memory_of(device: torch.device) -> int | None:
    """Bytes that ``device`` has, used or free; None: its memory is the host's."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.dtype, tensor.shape, tensor.stride()
