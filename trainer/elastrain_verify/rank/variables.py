"""The script's own variables as a loop body begins: a verdict names the one that is different."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import nn

from elastrain_verify.rank.record import tensor

DEPTH, MOST = 3, 20
"""Of what variables hold, and of each list."""
LARGEST = 8192
"""Elements of a tensor; a larger one is left out."""


def of_script(frame: FrameType | None, tracked: Mapping[str, Any]) -> dict[str, Any]:
    """By path: numbers, texts and small tensors, without the state of what is ``tracked``. ``frame``: within a call of
    the script."""
    while frame is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    known = {id(obj) for obj in tracked.values()}
    variables = {} if frame is None else {**frame.f_globals, **frame.f_locals}
    shown = ((name, each) for name, each in variables.items() if name[0] != "_")
    return {path: value for name, each in shown for path, value in _walk(name, each, DEPTH, known)}


def _walk(path: str, value: Any, depth: int, known: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, int | float | str):
        yield path, value
    elif isinstance(value, torch.Tensor):
        if value.numel() <= LARGEST:
            yield path, tensor(value)
    elif isinstance(value, nn.Module) and id(getattr(value, "module", None)) not in known:
        for name, part in value.named_modules(prefix=path):
            yield from ((f"{name}.{key}", v) for key, v in vars(part).items() if isinstance(v, int | float))
        for name, state in {} if id(value) in known else value.state_dict(prefix=f"{path}.").items():
            yield from _walk(name, state, depth, known)
    elif depth and id(value) not in known:
        if isinstance(value, list | tuple | deque):
            yield f"len({path})", len(value)
        for key, each in islice(_parts(value), MOST):
            yield from _walk(f"{path}{key}", each, depth - 1, known)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Of a list, a dictionary, a generator, and of objects and classes of the script's own."""
    if isinstance(value, list | tuple | deque):
        yield from ((f"[{number}]", each) for number, each in enumerate(value))
    elif isinstance(value, torch.Generator):
        yield ".get_state()", value.get_state()
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", each) for key, each in list(value.items()))
    elif "__main__" in (type(value).__module__, isinstance(value, type) and value.__module__):
        yield from ((f".{key}", each) for key, each in vars(value).items() if not key.startswith("_"))
