"""Tracked objects: their state moves with the job, and their ``step()`` does nothing in a discarded step."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from elastrain.elastic.state import Stateful


def track(tracked: dict[str, Stateful], objects: dict[str, Any], open_now: Callable[[], bool]) -> None:
    """Add ``objects`` to ``tracked`` and gate their ``step`` methods by ``open_now``.

    Raises ``TypeError`` or ``ValueError`` naming the object.
    """
    for name, obj in objects.items():
        if name in tracked:
            raise ValueError(f"job.track({name}=...): something is already tracked by this name")
        if isinstance(obj, nn.Module) and any(p.requires_grad for p in obj.parameters()):
            raise TypeError(f"job.track({name}=...): a model that trains is given to job.wrap(), which also tracks it")
        if not (callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))):
            raise TypeError(
                f"job.track({name}=...): {type(obj).__name__} has no state_dict() and load_state_dict(), "
                "so its state could not reach a joining worker"
            )
        if callable(getattr(obj, "step", None)):
            _gate(obj, open_now)
        tracked[name] = obj


def _gate(obj: Any, open_now: Callable[[], bool]) -> None:
    """Make ``obj.step`` do nothing while the gate is closed.

    By a subclass rather than an attribute of the object: a scheduler's ``state_dict`` is its ``__dict__``, and a method
    in there would travel to other ranks with the object it is bound to. Only an optimizer that a scheduler has got
    hold of carries a ``step`` in its ``__dict__`` already, and then it is that one which is gated.
    """
    in_instance = vars(obj).get("step")
    original = in_instance or type(obj).step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not open_now():
            return None
        return original(*args, **kwargs) if in_instance else original(self, *args, **kwargs)

    if in_instance:
        obj.step = types.MethodType(step, obj)  # a bound method: schedulers ask an optimizer's step for __func__
    else:
        obj.__class__ = type(type(obj).__name__, (type(obj),), {"step": step, "__module__": type(obj).__module__})
