"""The tensors of the tracked models by name, and the places of their buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

import torch
from torch import nn

from elastrain.elastic.state.buffers import fits
from elastrain.elastic.state.parts import is_sharded
from elastrain.elastic.state.tracked import is_average
from elastrain.elastic.torch_private import Norm, count_lists, hidden_buffers, local_of
from elastrain.elastic.undo.trees import PLAIN

SMALL_BYTES = 256 * 2**10
"""Below this size a buffer, and a tensor of an object that is neither model nor optimizer, always has a copy."""
NONE = torch.empty(0)
"""Stands for a buffer that is None."""


class Place(NamedTuple):
    """Of a buffer in a tracked module: code may give the place another tensor."""

    owner: nn.Module
    key: str
    name: str
    of_model: bool
    """Of one that trains, and of no average."""

    @property
    def buffer(self) -> torch.Tensor:
        buffer = self.owner._buffers.get(self.key)
        return NONE if buffer is None else buffer

    @property
    def is_copied(self) -> bool:
        """Whether it always has a copy: torch may change it without raising its version."""
        buffer = self.buffer
        return is_small(buffer) or isinstance(self.owner, Norm) or buffer.is_inference()


class Tensors:
    """Of the tracked models of one rank."""

    def __init__(self, tracked: Mapping[str, Any]) -> None:
        """``tracked`` is shared with the runtime."""
        self.parameters: dict[str, torch.Tensor] = {}
        self.places: list[Place] = []
        """Of buffers."""
        self.modules: list[nn.Module] = []
        self.owners: list[nn.Module] = []
        """Modules that own buffers, without torch's normalisations."""
        self.sharded = False
        """Whether some parameters are sharded tensors."""
        self.more: dict[str, frozenset[str]] = {}
        """Keys in the ``state_dict`` of models and optimizers beside those that torch's classes have."""
        self.moving: set[str] = set()
        """What bodies have changed beside the gated calls: names of tensors, and of other objects."""
        self.shown = False
        """Whether a body has shown what is moving."""
        self._copied: list[int] | None = None
        self.tracked = tracked
        self._known = 0
        """Tracked objects when they were looked up."""

    def models(self) -> Iterator[tuple[str, nn.Module]]:
        """And averages of them."""
        return ((name, obj) for name, obj in self.tracked.items() if isinstance(obj, nn.Module))

    def look_up(self, *, anew: bool) -> None:
        """Another body begins. ``anew``: it follows code that may have registered buffers."""
        if self._known == len(self.tracked) and not anew:
            return
        self._copied = None
        self._known, self.places, seen = len(self.tracked), [], set[int]()
        named = [(f"{name}.{path}", p) for name, model in self.models() for path, p in model.named_parameters()]
        self.parameters = dict({id(p): (name, p) for name, p in named}.values())
        self.modules = [*dict.fromkeys(module for _, model in self.models() for module in model.modules())]
        own = [m for m in self.modules if not (isinstance(m, Norm) and type(m).__module__.startswith("torch."))]
        self.owners = [module for module in own if module._buffers]
        if any(map(is_sharded, self.parameters.values())) and not self.sharded:
            self.sharded = True
            count_lists()
        for name, model in self.models():
            for path, owner in model.named_modules():
                for key, buffer in owner._buffers.items():
                    if buffer is None or id(buffer) not in seen:
                        full = f"{name}.{path}.{key}" if path else f"{name}.{key}"
                        self.places.append(Place(owner, key, full, not is_average(model)))
                        seen.add(id(buffer))
        self.more = {name: more for name, obj in self.tracked.items() if (more := more_of(obj))}

    def note(self, names: Collection[str]) -> None:
        """Bodies have changed these."""
        if not self.moving.issuperset(names):
            self.moving.update(names)
            self._copied = None

    @property
    def copied(self) -> list[int]:
        """The numbers of parameters, and of buffers behind them, that have a copy."""
        if self._copied is None:
            always = [name in self.moving for name in self.parameters]
            always += [place.is_copied or place.name in self.moving for place in self.places]
            self._copied = [number for number, copied in enumerate(always) if copied]
        return self._copied

    @property
    def changing(self) -> dict[str, torch.Tensor]:
        """By name: the models' buffers that bodies have changed, and the statistics of normalisations that train."""
        norms = {id(module) for module in self.modules if isinstance(module, Norm) and module.training}
        found = [p for p in self.places if p.of_model and (p.name in self.moving or id(p.owner) in norms)]
        return {place.name: place.buffer for place in found if place.buffer is not NONE}

    def versions(self, of: Sequence[torch.Tensor]) -> list[int]:
        """By tensor: how often it was changed in place, as far as torch counts. Writes through a view of a sharded one
        raise its own version, those to its memory on this rank that of the local tensor."""
        try:
            counts = [tensor._version for tensor in of]
            return [*map(add, counts, [local_of(tensor)._version for tensor in of])] if self.sharded else counts
        except RuntimeError:  # of tensors of torch.inference_mode()
            return [-1 if tensor.is_inference() else tensor._version for tensor in of]

    def caches(self, before: Sequence[torch.Tensor]) -> set[nn.Module]:
        """Modules of which no buffer is saved, and one has come or got another shape since there were the tensors
        ``before``: what is known of them may stand anywhere."""
        places = zip(self.places, before[len(self.parameters) :], strict=False)
        other = [place.owner for place, buffer in places if not fits(place.buffer, buffer)]
        return {owner for owner in other if owner._buffers.keys() <= hidden_buffers(owner)}

    def state_of(self, name: str, obj: Any) -> Any:
        """What is copied of an object beside the tensors of models, and the state of optimizers."""
        if isinstance(obj, torch.amp.GradScaler):  # its state_dict() waits for the device
            return {key: v for key, v in vars(obj).items() if type(v) in PLAIN or isinstance(v, torch.Tensor)}
        state, more = obj.state_dict(), self.more.get(name)
        return state if more is None else {key: state[key] for key in state.keys() & more}


def more_of(obj: Any) -> frozenset[str]:
    """As of :attr:`Tensors.more`, of one object."""
    known = {"state", "param_groups"}
    if isinstance(obj, nn.Module):
        named = [*obj.named_parameters(remove_duplicate=False), *obj.named_buffers(remove_duplicate=False)]
        known = {name for name, _ in named}
    elif not isinstance(obj, torch.optim.Optimizer):
        return frozenset()
    return frozenset(obj.state_dict().keys() - known)


def is_small(tensor: torch.Tensor) -> bool:
    """Whether it is below :data:`SMALL_BYTES`, or sparse, of which no more is known."""
    return tensor.layout is not torch.strided or tensor.nbytes < SMALL_BYTES
