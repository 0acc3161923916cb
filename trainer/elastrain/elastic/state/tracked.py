"""Tracked objects: their state moves with the job, and their methods act only in the steps in which they should.

``step()`` acts only in a step that is committed, ``zero_grad()`` not between the micro-batches of a step. One loop body
therefore serves the first, a middle and the last micro-batch, and a discarded step, without an ``if``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from elastrain.elastic.state.capture import Stateful

Gates = Mapping[str, Callable[[], bool]]
"""By name of a method: whether the method may act now."""


def track(tracked: dict[str, Stateful], objects: dict[str, Any], gates: Gates) -> None:
    """Add ``objects`` to ``tracked``, and gate those of their methods that ``gates`` names.

    Raises ``TypeError`` or ``ValueError`` naming the object.
    """
    for name, obj in objects.items():
        if name in tracked:
            raise ValueError(f"job.track({name}=...): an object is already tracked under this name")
        if isinstance(obj, nn.Module) and any(p.requires_grad for p in obj.parameters()):
            raise TypeError(f"job.track({name}=...): pass a model that trains to job.wrap(), which also tracks it")
        if not (callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))):
            raise TypeError(
                f"job.track({name}=...): {type(obj).__name__} has no state_dict() and load_state_dict(), "
                "so its state could not reach a joining worker"
            )
        gate(obj, gates)
        tracked[name] = obj


def gate(obj: Any, gates: Gates) -> None:
    """Make the methods of ``obj`` that ``gates`` names do nothing, and return None, while their gate is closed.

    By a subclass, not by an attribute of the object: a scheduler's ``state_dict`` is its ``__dict__``, and a method in
    it would travel to other ranks with the object it is bound to. An optimizer with a scheduler already has a ``step``
    in its ``__dict__``; that one is gated.
    """
    in_class = {}
    for name, is_open in gates.items():
        if not callable(getattr(obj, name, None)):
            continue
        if in_instance := vars(obj).get(name):
            # A bound method: schedulers ask an optimizer's step for __func__.
            setattr(obj, name, types.MethodType(_gated(_without_self(in_instance), is_open), obj))
        else:
            in_class[name] = _gated(getattr(type(obj), name), is_open)
    if in_class:
        obj.__class__ = type(type(obj).__name__, (type(obj),), {**in_class, "__module__": type(obj).__module__})


def _without_self(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method


def _gated(original: Callable[..., Any], is_open: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if is_open() else None

    return method
