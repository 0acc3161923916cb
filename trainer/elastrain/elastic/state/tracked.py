"""Tracked objects: their state moves with the job, and their methods keep the contract.

The contract is :mod:`elastrain.elastic.contract`. One loop body therefore serves the warm-up, the first, a middle and
the last micro-batch, and a discarded step, without an ``if``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from elastrain.elastic.contract import Call, Contract
from elastrain.elastic.state.capture import Stateful

UPDATES_OF_SCALER = ("unscale_", "step", "update")
UPDATES_OF_AVERAGE = ("update_parameters", "update", "set")


class Tracker:
    """Adds objects to those whose state moves with the job, and makes their methods keep the contract."""

    def __init__(self, tracked: dict[str, Stateful], contract: Contract) -> None:
        """``tracked`` is shared with the runtime."""
        self._tracked, self._contract = tracked, contract
        self._scaled: tuple[torch.Tensor, torch.Tensor] | None = None

    def track(self, objects: Mapping[str, Any]) -> None:
        """Add ``objects``, by name. Raises ``TypeError`` or ``ValueError`` naming the object."""
        for name, obj in objects.items():
            if name in self._tracked:
                raise ValueError(f"job.track({name}=...): an object is already tracked under this name")
            if _trains(obj) and not is_average(obj):
                raise TypeError(f"job.track({name}=...): pass a model that trains to job.wrap(), which also tracks it")
            if not (callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))):
                raise TypeError(
                    f"job.track({name}=...): {type(obj).__name__} has no state_dict() and load_state_dict(), "
                    "so its state could not reach a joining worker"
                )
            self.gate(obj, _calls_of(obj))
            if is_scaler(obj):
                self._watch_scale(obj)
            if isinstance(obj, torch.optim.Optimizer):
                self._allow_repeated_groups(obj)
            self._tracked[name] = obj

    def gate(self, obj: Any, calls: Mapping[str, Call]) -> None:
        """Make methods of ``obj``, by name, do nothing and return None where the contract skips their call.

        By a subclass, not by an attribute of the object: a scheduler's ``state_dict`` is its ``__dict__``, and a method
        in it would travel to other ranks with the object it is bound to. An optimizer with a scheduler already has a
        ``step`` in its ``__dict__``; that one is gated.
        """
        in_class = {}
        for name, call in calls.items():
            if not callable(getattr(obj, name, None)):
                continue
            acts = functools.partial(self._contract.acts, call, f"{type(obj).__name__}.{name}()")
            if in_instance := vars(obj).get(name):
                # A bound method: schedulers ask an optimizer's step for __func__.
                setattr(obj, name, types.MethodType(_gated(_without_self(in_instance), acts), obj))
            else:
                in_class[name] = _gated(getattr(type(obj), name), acts)
        if in_class:
            _subclass(obj, in_class)

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss that a tracked scaler has made ``loss`` from, or ``loss`` itself."""
        scaled, self._scaled = self._scaled, None
        return scaled[1] if scaled is not None and scaled[0] is loss else loss

    def _allow_repeated_groups(self, optimizer: torch.optim.Optimizer) -> None:
        """A loop body that adds a group may run again: for another micro-batch, or after a discarded step."""
        original = type(optimizer).add_param_group

        @functools.wraps(original)
        def add_param_group(this: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
            params = param_group["params"]
            new = [params] if isinstance(params, torch.Tensor) else list(params)  # it may be a generator
            repeated = any(list(map(id, group["params"])) == list(map(id, new)) for group in this.param_groups)
            if not repeated or self._contract.acts(Call.REPEATED_GROUP):
                original(this, {**param_group, "params": new})

        _subclass(optimizer, {"add_param_group": add_param_group})

    def _watch_scale(self, scaler: Any) -> None:
        original = type(scaler).scale

        @functools.wraps(original)
        def scale(this: Any, outputs: Any) -> Any:
            scaled = original(this, outputs)
            if isinstance(outputs, torch.Tensor):
                self._scaled = (scaled, outputs)
            return scaled

        _subclass(scaler, {"scale": scale})


def is_scaler(obj: Any) -> bool:
    """Whether it is a scaler of losses, as ``torch.amp.GradScaler``."""
    return all(callable(getattr(obj, name, None)) for name in (*UPDATES_OF_SCALER, "scale"))


def is_average(obj: Any) -> bool:
    """Whether it is an average of a model's weights, as torch's ``AveragedModel`` and timm's ``ModelEmaV3``."""
    updates = any(callable(getattr(obj, name, None)) for name in UPDATES_OF_AVERAGE)
    return isinstance(obj, nn.Module) and isinstance(getattr(obj, "module", None), nn.Module) and updates


def _trains(obj: Any) -> bool:
    return isinstance(obj, nn.Module) and any(p.requires_grad for p in obj.parameters())


def _calls_of(obj: Any) -> Mapping[str, Call]:
    """The methods of a tracked object that the contract knows."""
    if is_scaler(obj):
        return dict.fromkeys(UPDATES_OF_SCALER, Call.UPDATE)
    if is_average(obj):
        return dict.fromkeys(UPDATES_OF_AVERAGE, Call.UPDATE)
    return {"step": Call.UPDATE}


def _subclass(obj: Any, methods: dict[str, Any]) -> None:
    obj.__class__ = type(type(obj).__name__, (type(obj),), {**methods, "__module__": type(obj).__module__})


def _without_self(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method


def _gated(original: Callable[..., Any], acts: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if acts() else None

    return method
