"""Models and optimizers as the reference gives them to a script: with the job's random numbers, once for each step."""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from torch import nn

from elastrain.data.draws import Draws


class _Job(Protocol):
    @property
    def draws(self) -> Draws: ...

    @property
    def _last(self) -> bool: ...


class Body(NamedTuple):
    """What ``job.body`` is."""

    step: int
    execution: int
    micro_batch: int
    warm_up: bool
    samples: int


class Values(SimpleNamespace):
    """What ``job.variables()`` returns."""

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Wrapped(nn.Module):
    """What :meth:`Reference.wrap` returns: the model, with DDP's ``module``."""

    def __init__(self, module: nn.Module, draws: Draws) -> None:
        super().__init__()
        self.module, self.draws = module, draws

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.draws.samples()
        return self.module(*args, **kwargs)


def gated(obj: Any) -> tuple[str, ...]:
    """The methods of a tracked object that act behind the last part of a step only."""
    if all(hasattr(obj, name) for name in ("unscale_", "update", "scale")):
        return "unscale_", "step", "update"
    average = isinstance(obj, nn.Module) and isinstance(getattr(obj, "module", None), nn.Module)
    return ("step", "update_parameters", "update", "set") if average else ("step",)


def skipped(original: Any, job: _Job, obj: Any) -> Any:
    """``original``, a method of ``obj``, for the last part of a step only."""
    updates = hasattr(obj, "param_groups")

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        if not job._last:
            return None
        closure = next(filter(inspect.isroutine, (*args, *kwargs.values())), None)
        if not updates or closure is None:
            with job.draws.update() if updates else nullcontext():
                return original(*args, **kwargs)

        drawn = job.draws.closure(closure)
        named = {name: drawn if value is closure else value for name, value in kwargs.items()}
        value = original(*(drawn if value is closure else value for value in args), **named)
        job.draws.updated()
        return value

    return method
