"""The parameters of the models stay those of the job's first loop.

A layer that a script adds or replaces later begins with values of its own on each rank, and a joiner builds the model
without it. It is refused by name, before its first gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.tracked import is_average

_SHOWN = 3
"""Names in a message."""


class KnownParameters:
    """Of the models of one rank. For the training thread."""

    def __init__(self, tracked: Mapping[str, Stateful]) -> None:
        """``tracked`` is shared with the runtime; its modules are the models."""
        self._tracked = tracked
        self._known: dict[str, dict[str, nn.Parameter]] = {}
        """By model, under their names."""
        self._changed = False
        """Whether a module may have got other parameters or layers: any module of the process."""
        self._hooks = [
            register(lambda *_: self._note())
            for register in (register_module_parameter_registration_hook, register_module_module_registration_hook)
        ]

    def begin_loop(self) -> None:
        """Look the parameters up; from now on they stay. Raises as :meth:`check`, and for optimizers in a backward."""
        self.check()
        for name, model in self._tracked.items():
            if not isinstance(model, nn.Module) or is_average(model):
                continue
            self._known.setdefault(name, dict(model.named_parameters()))
            for path, p in self._known[name].items():
                if hasattr(p, "_in_backward_optimizers"):
                    raise RuntimeError(
                        f"job.steps(): parameter {name}.{path} has an optimizer that steps within the backward, before "
                        "gradients are summed over the ranks: leave torch's _apply_optimizer_in_backward out, and call "
                        "optimizer.step() behind job.backward()"
                    )

    def begin_step(self) -> None:
        """As :meth:`check`; costs nothing if no module has changed since."""
        if self._changed:
            self.check()

    def check(self) -> None:
        """Raises ``RuntimeError`` naming parameters that were added, replaced or removed since the first loop began."""
        self._changed = False
        for name, known in self._known.items():
            model = self._tracked[name]
            assert isinstance(model, nn.Module)
            now = dict(model.named_parameters())
            before = {id(p) for p in known.values()}
            if younger := [path for path, p in now.items() if id(p) not in before]:
                raise RuntimeError(
                    f"job.steps(): {_some(name, younger)} not in the model when the first loop began: each rank would "
                    "begin with other values, and a joiner builds the model without them. Build all layers before "
                    "job.wrap(), and begin to train them later by requires_grad_(True)"
                )
            present = {id(p) for p in now.values()}
            if removed := [path for path, p in known.items() if id(p) not in present]:
                raise RuntimeError(
                    f"job.steps(): {_some(name, removed)} in the model when the first loop began, and removed since: a "
                    "joiner builds the model with them. Leave them in it, with requires_grad_(False)"
                )

    def close(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def _note(self) -> None:
        self._changed = True


def _some(model: str, names: list[str]) -> str:
    shown, more = ", ".join(f"{model}.{name}" for name in names[:_SHOWN]), len(names) - _SHOWN
    return f"parameters {shown} and {more} more were" if more > 0 else f"parameters {shown} were"
