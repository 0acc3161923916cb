"""Gradients that outlive a step: a script that applies its optimizer after each n-th step only.

A rank's ``p.grad`` is that of the global batch when a step is over. If it is still there at the next backward, the
script keeps it. It is put aside then, so that only the new gradients are summed over the ranks, and added afterwards,
as plain torch adds a backward to it. A step that is discarded leaves the gradients with which it began.

Kept gradients belong to the state. Between two steps a rank cannot know what the next loop body will drop: most scripts
call ``zero_grad()`` at its beginning. Gradients that an optimizer has applied are therefore left out of the state once
the script has been seen to drop such gradients; all others are in it. If ranks come to differ, their votes show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from elastrain.elastic.state import parts
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.tracked import is_average
from elastrain.elastic.torch_private import foreach_norm

Gradients = dict[nn.Parameter, torch.Tensor]


class KeptGradients:
    """Of the models of one rank. For the training thread."""

    def __init__(self, tracked: Mapping[str, Stateful]) -> None:
        """``tracked`` is shared with the runtime; its modules are the models."""
        self.aside: Gradients = {}
        """What the backward under way adds to. The script does not see it meanwhile."""
        self._tracked = tracked
        self._named: dict[str, dict[str, nn.Parameter]] = {}
        """By model, under their names; looked up when a loop begins."""
        self._parameters: list[nn.Parameter] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        self._applied: list[torch.optim.Optimizer] = []
        """Optimizers that have updated since the last backward."""
        self._drops: bool | None = None
        """Whether the script drops gradients that were applied, before the next backward; None: not seen yet."""
        self._any_before = False
        """Whether there were gradients when the step began."""
        self._before: Gradients | None = None
        """Copies of the kept gradients with which the step began; None before its first backward."""

    def begin_loop(self) -> None:
        """Look up the models and the optimizers."""
        models = {n: m for n, m in self._tracked.items() if isinstance(m, nn.Module) and not is_average(m)}
        self._named = {name: dict(model.named_parameters()) for name, model in models.items()}
        self._parameters = list({p: None for named in self._named.values() for p in named.values()})
        for optimizer in self._tracked.values():
            if isinstance(optimizer, torch.optim.Optimizer) and optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
                optimizer.register_step_post_hook(lambda o, *_: self._applied.append(o))

    # -- a step ------------------------------------------------------------------------------------------------------
    def begin_step(self) -> None:
        """A loop body follows, the first of a step."""
        self._before, self.aside = None, {}
        self._any_before = any(p.grad is not None for p in self._parameters)

    @property
    def begun(self) -> bool:
        """Whether a backward of the step has begun."""
        return self._before is not None

    def put_aside(self, *, first: bool) -> bool:
        """A backward follows. Returns whether the script keeps gradients of a step before. ``first``: of the step."""
        found = {p: p.grad for p in self._parameters if p.grad is not None}
        if not first:
            self.aside = found
            for p in found:
                p.grad = None
            return False
        keeps = bool(found) and not _are_zero(found.values())
        self._notice(found if keeps else {})
        # Zeros, of zero_grad(set_to_none=False), stay: backward adds to them in place, and their sum is zero.
        # In memory of their own: that of a gradient may be a buffer in which the next ones are summed.
        self._before = {p: gradient.detach().clone() for p, gradient in found.items()} if keeps else {}
        self.aside = self._before
        for p in self.aside:
            p.grad = None
        return keeps

    def add(self) -> None:
        """The gradients are those of the global batch: add what was put aside before the backward."""
        self._applied.clear()
        with torch.no_grad():
            for p, gradient in self.aside.items():
                if p.grad is None:
                    p.grad = gradient.clone() if self.aside is self._before else gradient
                else:
                    p.grad = _sum(p.grad, gradient)
        self.aside = {}

    def restore(self) -> None:
        """The step was discarded: the gradients are those with which it began.

        Without a backward in it nothing has changed, beside what the body has dropped, and will drop again.
        """
        if self._before is not None:
            for p in self._parameters:
                p.grad = self._before.get(p)
        self._before, self.aside = None, {}

    # -- part of the state -------------------------------------------------------------------------------------------
    @property
    def present(self) -> bool:
        """Whether the state contains gradients."""
        return any(True for _ in self._of_state())

    def capture(self) -> dict[str, Any]:
        """By model and parameter: copies of the gradients that belong to the state, of a sharded model as parts."""
        tree: dict[str, dict[str, Any]] = {}
        for model, name, gradient in self._of_state():
            tree.setdefault(model, {})[name] = gradient.detach().clone()
        return {"gradients": parts.taken(tree), "drops": self._drops}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Go on with the gradients that :meth:`capture` has returned on another rank, and with no others."""
        if not self._named:
            self.begin_loop()
        self._drops = kept["drops"]
        self._before, self.aside = None, {}
        self._applied.clear()
        for p in self._parameters:
            p.grad = None
        for model, gradients in kept["gradients"].items():
            for name, gradient in gradients.items():
                p = self._named[model][name]
                p.grad = _of_parameter(p, gradient)

    def _of_state(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        applied: set[nn.Parameter] = set()
        if self._drops:
            applied = {p for o in self._applied for group in o.param_groups for p in group["params"]}
        for model, named in self._named.items():
            for name, p in named.items():
                if p.grad is not None and p not in applied:
                    yield model, name, p.grad

    # -- inside ------------------------------------------------------------------------------------------------------
    def _notice(self, kept: Gradients) -> None:
        """See what the script has done with gradients that were applied."""
        applied = {p for o in self._applied for group in o.param_groups for p in group["params"]}
        if applied and self._any_before:
            self._drops = applied.isdisjoint(kept)


def _are_zero(gradients: Iterable[torch.Tensor]) -> bool:
    """Whether all are zero, or so small that their squares are. On a device the host waits for it."""
    values = [parts.local_of(g) for g in gradients]
    dense = [g.coalesce().values() if g.is_sparse else g for g in values]
    norms = foreach_norm([g for g in dense if g.numel()])
    return not norms or not torch.stack([norm.double().to(norms[0].device) for norm in norms]).any()


def _sum(new: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """``new + kept``, in the memory of ``new`` if that is dense."""
    if new.layout is kept.layout:
        return new.add_(kept)
    dense, other = (new, kept) if new.layout is torch.strided else (kept.clone(), new)
    return dense.add_(other)


def _of_parameter(p: nn.Parameter, gradient: Any) -> torch.Tensor:
    """A gradient of ``p`` out of the state."""
    if not isinstance(gradient, parts.Part):
        home: torch.Tensor = gradient.to(p.device, copy=True)
        return home
    sharded = torch.zeros_like(p)
    parts.local_of(sharded).copy_(gradient.local)
    return sharded
