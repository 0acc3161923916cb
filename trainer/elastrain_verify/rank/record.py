"""Writes what a training process holds after each committed step: one JSON line each, small for models of any size.

A tensor is recorded as a digest of its bytes, sums over its elements in float64, and a sample of them. Two that differ
in any element differ in the digest; the sums and the sample say by how much.
"""

from __future__ import annotations

import json
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler

SAMPLE = 16
"""Elements of a tensor in its record; smaller ones are recorded whole."""
MOST_LEAVES = 20_000
"""Numbers and texts of one object in its record."""

_TORCH = str(Path(torch.__file__).parent)

cuts: tuple[int, ...] = ()
"""Of a reference: numbers of ranks over which the runs shard the model."""
_made: list[tuple[weakref.ref[Any], str]] = []
"""Optimizers, schedulers and scalers of this process, tracked or not, and where the script has made them."""


def watch_constructors() -> None:
    """From now on :func:`entries` includes those that the script does not track."""
    for kind in (torch.optim.Optimizer, LRScheduler, GradScaler):
        original = kind.__init__

        def noting(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> None:
            _original(self, *args, **kwargs)
            if not any(ref() is self for ref, _ in _made):
                _made.append((weakref.ref(self), _place_of_script()))

        kind.__init__ = noting


def _place_of_script() -> str:
    """Of the innermost frame that is none of torch's, nor of this file."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Recorder:
    """The record of one process."""

    def __init__(self, folder: Path, **about: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{about['worker']}.{about['pid']}.jsonl").open("a", buffering=1)
        self.write("start", **about)

    def write(self, kind: str, **fields: Any) -> None:
        """A whole line at once: a kill loses none before it."""
        self._file.write(json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n")

    def close(self) -> None:
        self._file.close()


def entries(tracked: Mapping[str, Any], loss: float | None, gradients: Mapping[str, Any]) -> dict[str, Any]:
    """All that the script trains, by name, in the order in which a cause comes before its effects."""
    return dict(_entries(tracked, loss, gradients))


def state(tracked: Mapping[str, Any]) -> dict[str, Any]:
    """What of it elastrain puts back, sends and saves."""
    left_out = ("untracked ", "job.loss")
    found = _entries(tracked, None, {})
    return {name: value for name, value in found if not name.startswith(left_out) and not name.endswith(".training")}


def gradients(tracked: Mapping[str, Any]) -> dict[str, Any]:
    """Of the models, as :func:`entries`."""
    models = {name: obj for name, obj in tracked.items() if isinstance(obj, nn.Module)}
    named = ((f"{name}.{n}.grad", p) for name, model in models.items() for n, p in model.named_parameters())
    return {name: tensor(p.grad) for name, p in named if p.grad is not None}


def batch(tree: Any) -> str:
    """A digest of the tensors, numbers and texts of a batch."""
    found = xxhash.xxh64()
    for name, value in leaves("", tree):
        found.update(f"{name}={value['digest'] if isinstance(value, dict) else value!r};".encode())
    return found.hexdigest()


def _entries(tracked: Mapping[str, Any], loss: float | None, gradients: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    models = {name: obj for name, obj in tracked.items() if isinstance(obj, nn.Module)}
    names = {id(p): f"{name}.{path}" for name, m in models.items() for path, p in m.named_parameters()}
    others = {name: obj for name, obj in tracked.items() if name not in models} | _untracked(tracked)
    optimizers = {name: obj for name, obj in others.items() if isinstance(obj, torch.optim.Optimizer)}
    for name, obj in others.items():
        if name not in optimizers:
            yield from leaves(name, obj.state_dict())
    for name, optimizer in optimizers.items():
        yield from _groups(name, optimizer, names)
    yield "job.loss", loss
    yield from gradients.items()
    for name, model in models.items():
        yield from ((f"{name}.{n} (buffer)", tensor(buffer)) for n, buffer in model.named_buffers())
    for name, optimizer in optimizers.items():
        for number, (p, state) in enumerate(optimizer.state.items()):
            yield from leaves(f"{name}.state[{names.get(id(p), number)}]", state)
    for name, model in models.items():
        if not isinstance(getattr(model, "module", None), nn.Module):  # an average of the weights does not train
            yield f"{name}.training", model.training
        yield from ((f"{name}.{n}", tensor(p)) for n, p in model.named_parameters())


def _groups(name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key == "params":
                yield (
                    f"{name}.param_groups[{number}].params",
                    [names.get(id(p), "outside of the models") for p in value],
                )
            else:
                yield from leaves(f"{name}.param_groups[{number}].{key}", value)


def _untracked(tracked: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizers and schedulers that are not among ``tracked``, by a name that says so."""
    known = {id(obj) for obj in tracked.values()}
    found = [(obj, place) for ref, place in _made if (obj := ref()) is not None and id(obj) not in known]
    return {
        f"untracked {type(obj).__name__} of {place}" + f" ({i})" * (i > 0): obj for i, (obj, place) in enumerate(found)
    }


def leaves(path: str, tree: Any, most: int = MOST_LEAVES) -> Iterator[tuple[str, Any]]:
    """The tensors, numbers and texts in a tree of dicts and sequences, by path; of other objects only their type."""
    if isinstance(tree, Mapping):
        for key, value in list(tree.items())[:most]:
            yield from leaves(f"{path}.{key}" if isinstance(key, str) else f"{path}[{key}]", value, most)
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree[:most]):
            yield from leaves(f"{path}[{number}]", value, most)
    elif isinstance(tree, torch.Tensor):
        yield path, tensor(tree)
    elif isinstance(tree, (np.ndarray, np.generic)):
        array = np.asarray(tree)
        yield path, tensor(torch.from_numpy(array.copy())) if array.dtype.kind in "biuf" else str(array)[:200]
    elif tree is None or isinstance(tree, (bool, int, float, str)):
        yield path, tree
    else:
        yield path, f"a {type(tree).__name__}"


def tensor(value: torch.Tensor) -> dict[str, Any]:
    """The record of a tensor; of a sharded one, that of the part which this process holds, with its name.

    A reference holds such a tensor as a whole, and records the parts of :data:`cuts` too.
    """
    value = value.detach()
    if not isinstance(value, DTensor):
        return _dense(value)
    local, mesh = value.to_local(), value.device_mesh
    if cuts:
        parts = {f"{i} of {n}": _dense(part) for n in cuts for i, part in enumerate(_cut(local, n))}
        return {**_dense(local), "parts": parts}
    by_rows = mesh.ndim == 1 and mesh.get_coordinate() and value.placements[0].is_shard(0)
    return {**_dense(local), "part": f"{mesh.get_coordinate()[0]} of {mesh.size()}" if by_rows else "of a grid"}


def _cut(whole: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """As FSDP cuts it: by rows, into equal parts but for the last ones, which may be empty."""
    cut = list(whole.chunk(parts))
    return cut + [whole[:0]] * (parts - len(cut))


def _dense(local: torch.Tensor) -> dict[str, Any]:
    if local.layout is not torch.strided:
        local = local.to_dense()
    flat = local.reshape(-1).cpu()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    raw = flat.contiguous().view(torch.uint8).numpy().data if flat.numel() else b""
    exact = flat.double()
    step = max(1, -(-flat.numel() // SAMPLE))
    largest = float(exact.abs().max()) if flat.numel() else 0.0
    return {
        "type": f"{str(local.dtype).removeprefix('torch.')}{list(local.shape)}",
        "digest": xxhash.xxh64_hexdigest(raw),
        "size": flat.numel(),
        "largest": largest,
        "norm": float(exact.norm()),
        "sum": float(exact.sum()),
        "absolute": float(exact.abs().sum()),
        "sample": exact[::step].tolist(),
    }
