"""Mistakes that raise no error by themselves, but train another model.

Most are objects that act on what the job tracks, and are not tracked themselves. Their updates would also act in the
warm-up and in a discarded step, and their state would reach no joiner. torch itself shows an optimizer's step, and that
a scheduler was made for an optimizer; ``elastrain verify`` names every other kind, such as a scaler or an average.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elastrain.elastic.contract import Phase

_DEPTH, _SHORT = 3, 200
"""Objects within tracked ones are tracked with them: so deep, in lists of this length."""
_OURS = "elastrain.", "elastrain_frameworks."


class Untracked:
    """Of one job: watches optimizers, and their schedulers, that it does not track."""

    def __init__(self, tracked: Mapping[str, Any], in_body: Callable[[], bool]) -> None:
        """``tracked`` is shared with the runtime. ``in_body()``: whether a loop body runs."""
        self._tracked, self._in_body = tracked, in_body
        self._fine = weakref.WeakSet[torch.optim.Optimizer]()
        """Optimizers that are tracked, or have no parameters of the models."""
        self._watches = False
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Watch no longer."""
        self._hook.remove()

    def early(self, name: str, phase: Phase) -> None:
        """The script reads ``job.name``. Warns, in its line, of a value that is the same on every worker."""
        if phase is not Phase.SETUP or sys._getframe(2).f_globals.get("__name__", "").startswith(_OURS):
            return
        warnings.warn(
            f"job.{name} is {int(name != 'rank')} on every worker before the first loop: no generation has formed. "
            "What one rank shall do belongs after the loop, or under 'if job.committed and job.rank == 0:' in it",
            stacklevel=3,
        )

    def watch(self, *, sharded: bool) -> None:
        """The first loop begins. ``sharded``: torch's default process group is the job's own.

        Raises ``RuntimeError`` for a tracked optimizer with a scheduler that is not.
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
        for optimizer in (obj for obj in self._tracked.values() if isinstance(obj, torch.optim.Optimizer)):
            # A scheduler counts the steps of its optimizer, whose method it replaces.
            known = any(
                isinstance(o, LRScheduler) and vars(o).get("optimizer") is optimizer
                for o in _within([*self._tracked.values()], _DEPTH + 1)
            )
            if "step" in vars(optimizer) and "initial_lr" in optimizer.param_groups[0] and not known:
                what = f"the scheduler of {type(optimizer).__name__}"
                raise RuntimeError(_MESSAGE.format(what, "scheduler=scheduler"))

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Raises ``RuntimeError`` in a loop body for an optimizer of the models that is not tracked."""
        if optimizer in self._fine or not self._in_body():
            return
        if not any(obj is optimizer for obj in _within([*self._tracked.values()], _DEPTH + 1)):
            trained = {id(p) for m in self._tracked.values() if isinstance(m, nn.Module) for p in m.parameters()}
            if any(id(p) in trained for group in optimizer.param_groups for p in group["params"]):
                raise RuntimeError(
                    _MESSAGE.format(f"{type(optimizer).__name__}.step()", "optimizer=optimizer")
                    + " (or job.wrap(net, optimizer=optimizer))"
                )
        self._fine.add(optimizer)


_MESSAGE = (
    "{}: it changes what the job trains, and is not tracked: it would act in the warm-up and in repeated steps, and "
    "joiners would not receive its state: call job.track({}) before the loop"
)


def _within(obj: Any, depth: int) -> Iterator[Any]:
    """``obj`` and what it holds, in attributes and short lists."""
    if type(obj) in weakref.ProxyTypes:  # of an object that may have been collected
        return
    yield obj
    if depth and not isinstance(obj, nn.Module | torch.Tensor | type):
        away = ("optimizer",) if isinstance(obj, LRScheduler) else ()
        attributes = [value for name, value in getattr(obj, "__dict__", {}).items() if name not in away]
        held = obj if isinstance(obj, list | tuple) else attributes
        for each in held if len(held) <= _SHORT else ():
            yield from _within(each, depth - 1)
