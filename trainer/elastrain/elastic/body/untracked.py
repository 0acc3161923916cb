"""Mistakes that raise no error by themselves, but train another model.

Most are objects that act on what the job tracks, and are not tracked themselves. Their updates would also act in the
warm-up and in a discarded step, and their state would reach no joiner. The job cannot know what an object is for before
it is used, so the use raises the error.
"""

from __future__ import annotations

import functools
import gc
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elastrain.elastic.contract import Phase
from elastrain.elastic.state.tracked import UPDATES_OF_AVERAGE, is_average

_KINDS = LRScheduler, torch.amp.GradScaler, nn.Module
"""Of objects that may act on what a job tracks."""
_MOST, _SHORT = 5000, 200
"""Objects within tracked ones are tracked with them; so many are looked at, in lists of this length."""


class Untracked:
    """Of one job: watches optimizers, schedulers, loss scalers and averages that it does not track."""

    def __init__(self, tracked: Mapping[str, Any], in_body: Callable[[], bool]) -> None:
        """``tracked`` is shared with the runtime. ``in_body()``: whether a loop body runs."""
        self._tracked, self._in_body = tracked, in_body
        self._known: tuple[int, set[int]] = (0, set())
        self._others: set[int] = set()
        """Optimizers of parameters outside of the models."""
        self._watches = False
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Watch no longer."""
        self._hook.remove()

    def early(self, name: str, phase: Phase) -> None:
        """The script reads ``job.name``. Warns, in its line, of a value that is the same on every worker."""
        if phase is not Phase.SETUP or sys._getframe(2).f_globals.get("__name__", "").startswith("elastrain."):
            return
        warnings.warn(
            f"job.{name} is {int(name != 'rank')} on every worker before the first loop: no generation has formed. "
            "What one rank shall do belongs after the loop, or under 'if job.committed and job.rank == 0:' in it",
            stacklevel=3,
        )

    def watch(self, *, sharded: bool) -> None:
        """The first loop begins: watch the schedulers, scalers and averages that the script has made.

        ``sharded``: torch's default process group is the job's own.
        """
        if self._watches:
            return
        self._watches = True
        if not sharded and dist.is_available() and dist.is_initialized():
            warnings.warn(
                "torch.distributed: this script has called init_process_group(). That group has a fixed number of "
                "ranks, and its collectives end with the first lost one: leave it out, and use job.all_reduce() and "
                "job.all_gather_object() after a loop",
                stacklevel=3,
            )
        for obj in instances({kind for base in _KINDS for kind in _heirs(base) if _updates(kind)}):
            self._watch(obj)

    def _watch(self, obj: Any) -> None:
        """``obj`` may belong to a library, or be half made: one that cannot be read is none that the script uses."""
        try:
            acts = not isinstance(obj, LRScheduler) or any(obj.optimizer is o for o in self._tracked.values())
            acts &= not isinstance(obj, torch.amp.GradScaler) or obj.is_enabled()
            acts &= not isinstance(obj, nn.Module) or is_average(obj)
        except Exception:
            return
        if acts and isinstance(obj, LRScheduler):
            self._guard(obj, ["step"], "scheduler", everywhere=True)
        elif acts and isinstance(obj, torch.amp.GradScaler):
            self._guard(obj, ["scale"], "scaler")
        elif acts:
            self._guard(obj, UPDATES_OF_AVERAGE, "average")

    def _guard(self, obj: Any, methods: Iterable[str], name: str, *, everywhere: bool = False) -> None:
        """Have ``methods`` of ``obj`` raise while it is not tracked: in a loop body, or ``everywhere``."""
        if self._is_tracked(obj):
            return
        guarded = {m: self._guarded(getattr(type(obj), m), name, everywhere) for m in methods if hasattr(type(obj), m)}
        obj.__class__ = type(type(obj).__name__, (type(obj),), {**guarded, "__module__": type(obj).__module__})

    def _guarded(self, original: Callable[..., Any], name: str, everywhere: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(this: Any, *args: Any, **kwargs: Any) -> Any:
            by_position = name == "scheduler" and (args or kwargs) and not isinstance(this, ReduceLROnPlateau)
            if (everywhere or self._in_body()) and not by_position and not self._is_tracked(this):
                raise RuntimeError(_MESSAGE.format(f"{type(this).__name__}.{original.__name__}()", f"{name}={name}"))
            return original(this, *args, **kwargs)

        return method

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Raises ``RuntimeError`` in a loop body for an optimizer of the models that is not tracked."""
        if id(optimizer) in self._others or not self._in_body() or self._is_tracked(optimizer):
            return
        trained = {id(p) for m in self._tracked.values() if isinstance(m, nn.Module) for p in m.parameters()}
        if any(id(p) in trained for group in optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                _MESSAGE.format(f"{type(optimizer).__name__}.step()", "optimizer=optimizer")
                + " (or job.wrap(net, optimizer=optimizer))"
            )
        self._others.add(id(optimizer))

    def _is_tracked(self, obj: Any) -> bool:
        count, known = self._known
        if id(obj) not in known and (count != len(self._tracked) or not self._in_body()):
            known = _within(self._tracked.values())
            self._known = len(self._tracked), known
        return id(obj) in known


_MESSAGE = (
    "{}: it changes what the job trains, and is not tracked: it would act in the warm-up and in repeated steps, and "
    "joiners would not receive its state: call job.track({}) before the loop"
)


def instances(kinds: Collection[type]) -> list[Any]:
    """All objects of these classes of Python.

    By what refers to a class, as its objects do. A list of all objects would hold tuples that other threads are still
    building: Python then ends these with ``SystemError: bad argument to internal function``.
    """
    identities = {id(kind) for kind in kinds}  # not isinstance: a proxy computes __class__
    return [obj for obj in gc.get_referrers(*kinds) if id(type(obj)) in identities]


def _updates(kind: type) -> bool:
    """Whether its objects may act on what a job tracks."""
    return not issubclass(kind, nn.Module) or any(hasattr(kind, name) for name in UPDATES_OF_AVERAGE)


def _heirs(base: type) -> Iterator[type]:
    """``base`` and all classes that inherit from it."""
    yield base
    heirs: list[type] = type.__subclasses__(base)
    for heir in heirs:
        yield from _heirs(heir)


def _within(objects: Iterable[Any]) -> set[int]:
    """Identities of ``objects`` and of what they hold, in attributes, dicts and short lists."""
    seen: set[int] = set()
    found = deque(objects)
    while found and len(seen) < _MOST:
        obj = found.popleft()
        if id(obj) in seen or issubclass(type(obj), (torch.Tensor, str, int, float, type, *weakref.ProxyTypes)):
            continue
        seen.add(id(obj))
        if isinstance(obj, nn.Module):
            continue
        held = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, list | tuple) else _attributes(obj)
        found.extend(held if len(held) <= _SHORT else ())
    return seen


def _attributes(obj: Any) -> list[Any]:
    """Without those that lead away from it: a scheduler's optimizer, an optimizer's parameters."""
    apart: tuple[str, ...] = ("optimizer",) if isinstance(obj, LRScheduler) else ()
    if isinstance(obj, torch.optim.Optimizer):
        apart = ("state", "param_groups", "defaults")
    return [value for name, value in getattr(obj, "__dict__", {}).items() if name not in apart]
