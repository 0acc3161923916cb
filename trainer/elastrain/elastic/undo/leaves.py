"""What a loop body changes of the tracked state, and how it is put back. The one undo.

What a body may change is a set of leaves. One that is no tensor is copied when the body begins: it is small. Of tensors
torch counts the changes in place (``_version``), so that a copy is needed only of those that the script changes itself.
Gates by the name of a method cannot show them: SAM perturbs the weights by ``first_step()``, a WGAN clamps them, and an
average may be kept by ``lerp_``. The versions are compared in each body, before and behind the gated calls. A tensor
that has moved beside them once is copied at the beginning of each body from then on. Other scripts pay for looks at the
versions only: with Adam less than 1 µs in a body for each parameter.

Three writes raise no version. Kernels of normalisations do not: small buffers are always copied. Writes by way of
``tensor.data`` do not: the job sees each use of ``.data`` in a body. Writes to memory that another tensor or an array
shares do not (parameters as views of a flat tensor): what shares its memory as a loop body begins is always copied.

A module with buffers goes back as a whole, with what its attributes know of them, such as the length of a table; or
stays as a whole, if its buffers are a cache (:meth:`Tensors.caches`).

A body that updates the state before its last backward has a copy of all leaves: which backward is the last is known
when it has ended. So has the first body of a process, of which nothing is known. A copy that takes much room from the
script on a device lies on the host (:func:`~elastrain.elastic.state.host_copy.crowded`).

A tensor that has moved in a discarded body and has no copy cannot be put back: this rank is out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from elastrain.elastic.state import capture, parts
from elastrain.elastic.state.buffers import fits, put_buffer
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.host_copy import Memory
from elastrain.elastic.torch_private import forget_stages, is_shared, memory_of, uses_of_data
from elastrain.elastic.undo.tensors import NONE, Tensors, is_small
from elastrain.elastic.undo.trees import Begun, Frozen, attributes, equal, frozen, look, put_back, same

UPDATE = "the update of the step"
"""What cannot be put back where only some leaves have copies."""


class Leaves:
    """Of one rank's tracked objects. For the training thread."""

    def __init__(self, tracked: Mapping[str, Stateful]) -> None:
        """``tracked`` is shared with the runtime."""
        self.tensors, self._memory = Tensors(tracked), Memory()
        self._begun = Begun()

    # -- a body --------------------------------------------------------------------------------------------------------
    def begin(self, *, whole: bool, body: bool = True) -> None:
        """A loop body begins, or begins again; or ``body`` is False, and code behind a loop. ``whole``: all leaves are
        copied, as for the first body of a process."""
        whole |= not self.tensors.shown
        self.tensors.look_up(anew=whole or self._begun.whole)
        begun = self._begun = Begun(whole, open=body)
        begun.tensors = [*self.tensors.parameters.values(), *(place.buffer for place in self.tensors.places)]
        begun.names = [*self.tensors.parameters, *(place.name for place in self.tensors.places)]
        begun.trains = [parameter.requires_grad for parameter in self.tensors.parameters.values()]
        begun.modes = [module.training for module in self.tensors.modules]
        begun.attributes = [(module, attributes(module)) for module in self.tensors.owners]
        walked = len(begun.tensors)
        for name, obj in self.tensors.tracked.items():
            self._take_object(begun, name, obj)
            begun.names += [name] * (len(begun.tensors) - len(begun.names))
        others = range(walked, len(begun.tensors))
        for name, _, values in begun.looks:
            begun.tensors += (tensors := [value for value in values if isinstance(value, torch.Tensor)])
            begun.names += [name] * len(tensors)
        begun.versions = self.tensors.versions(begun.tensors)
        begun.walked = begun.versions[:walked]
        self._find_shared(begun)
        if whole:
            begun.copied = [*range(len(begun.tensors))]
        else:
            small = [n for n in others if is_small(begun.tensors[n]) or begun.names[n] in self.tensors.moving]
            begun.copied = self.tensors.copied + small
        begun.values = self._memory.copy([parts.local_of(begun.tensors[number]) for number in begun.copied])

    @property
    def whole(self) -> bool:
        """Whether the body that runs began with a copy of all leaves."""
        return self._begun.whole

    @contextmanager
    def gated(self) -> Iterator[None]:
        """Around a call that changes the state of a step that counts: its changes are not the script's own."""
        if not self._begun.open:
            yield
            return
        self._learn()
        yield
        self._begun.updated, self._begun.looks = True, []  # an optimizer may give its old tensors up
        self.note()

    def note(self) -> None:
        """What has changed so far is not the script's own."""
        self._begun.walked = self.tensors.versions(self._begun.tensors[: len(self._begun.walked)])
        uses_of_data().clear()

    def end(self) -> bool:
        """The body counts, or was a warm-up. Returns whether it is the first one of this process."""
        begun = self._begun
        self._learn()
        begun.open = False
        in_objects = [n for *_, state in begun.objects for n in range(state.at.start, state.at.stop)]
        now = self.tensors.versions([begun.tensors[n] for n in in_objects])
        self._moved(n for n, version in zip(in_objects, now, strict=True) if version != begun.versions[n])
        shown, self.tensors.shown = self.tensors.shown, True
        return not shown

    def restore(self) -> list[str]:
        """Put back what the body has changed. Returns the names of what has changed and has no copy."""
        begun, caches = self._begun, self.tensors.caches(self._begun.tensors)
        lost = self._without_copy(caches)
        begun.open = False
        for parameter, trains in zip(self.tensors.parameters.values(), begun.trains, strict=True):
            parameter.requires_grad_(trains)
        for module, mode in zip(self.tensors.modules, begun.modes, strict=True):
            module.training = mode
        for module, before in begun.attributes:
            if module not in caches:
                put_back(module, before)
        self._put_tensors_back(caches)
        for optimizer, groups, options in begun.groups:  # those that were added go, and others come again
            optimizer.param_groups[:] = [group for group, _ in groups]
            known = {p for _, parameters in groups for p in parameters}
            for key in [key for key in optimizer.state if isinstance(key, torch.Tensor) and key not in known]:
                del optimizer.state[key]
            for (group, parameters), values in zip(groups, options.thawed(begun.tensors), strict=True):
                for key in group.keys() - values.keys() - {"params"}:
                    del group[key]
                group.update(params=parameters, **values)
        for optimizer, state in begun.states:
            optimizer.state.clear()
            optimizer.state.update(state.thawed(begun.tensors))
        lost += [name for name, obj, state in begun.objects if not self._put_object_back(name, obj, state)]
        self.tensors.note({*lost} - {UPDATE})
        return [*dict.fromkeys(lost)]

    # -- the models' buffers -------------------------------------------------------------------------------------------
    def sent(self) -> dict[str, torch.Tensor]:
        """By name: those that bodies have changed, this one included, and the small ones."""
        self._learn()
        found = self.tensors.changing | {p.name: p.buffer for p in self.tensors.places if p.of_model and p.is_copied}
        return {n: b.detach() for n, b in found.items() if b is not NONE and b.layout is torch.strided}

    def take(self, values: Mapping[str, torch.Tensor]) -> None:
        """Give the models the buffers that another rank has sent."""
        for place in self.tensors.places:
            if place.name in values:
                put_buffer(place.owner, place.key, values[place.name])

    # -- begin ---------------------------------------------------------------------------------------------------------
    def _take_object(self, begun: Begun, name: str, obj: Any) -> None:
        """Copy what is no tensor of its state, and add the tensors to the leaves."""
        if isinstance(obj, torch.optim.Optimizer):
            groups = [(group, [*group["params"]]) for group in obj.param_groups]
            options = [{key: v for key, v in group.items() if key != "params"} for group, _ in groups]
            begun.groups.append((obj, groups, frozen(options, begun.tensors)))
            if begun.whole or name in self.tensors.moving:
                begun.states.append((obj, frozen(dict(obj.state), begun.tensors)))
            else:
                begun.looks.append((name, obj, look(obj)))
        if not isinstance(obj, nn.Module | torch.optim.Optimizer) or name in self.tensors.more:
            begun.objects.append((name, obj, frozen(self.tensors.state_of(name, obj), begun.tensors)))

    def _find_shared(self, begun: Begun) -> None:
        """Which tensors share their memory with another one, since code outside of bodies has used their data."""
        if (used := uses_of_data()) or begun.whole:
            leaves = enumerate(begun.tensors)
            self._moved(n for n, t in leaves if (begun.whole or memory_of(t) in used) and is_shared(t))
            used.clear()

    # -- learn ---------------------------------------------------------------------------------------------------------
    def _learn(self) -> None:
        """What has changed since the last gated call is the script's own: it is copied from now on."""
        begun, first = self._begun, len(self.tensors.parameters)
        now = self.tensors.versions(begun.tensors[: len(begun.walked)])
        moved = [n for n, place in enumerate(self.tensors.places, first) if place.buffer is not begun.tensors[n]]
        if now != begun.walked:
            moved += [n for n, version in enumerate(now) if version != begun.walked[n]]
        if used := uses_of_data():
            begun.by_data |= used
            moved += [n for n, tensor in enumerate(begun.tensors) if memory_of(tensor) in used]
            uses_of_data().clear()
        begun.walked = now
        self._moved(moved)

    def _moved(self, numbers: Iterable[int]) -> None:
        self.tensors.note({self._begun.names[number] for number in numbers})

    # -- restore -------------------------------------------------------------------------------------------------------
    def _without_copy(self, caches: set[nn.Module]) -> list[str]:
        """The names of the leaves that have moved in this body, and have no copy."""
        begun, by_data = self._begun, self._begun.by_data | uses_of_data()
        if begun.whole or begun.updated:
            return [] if begun.whole else [UPDATE]
        places = enumerate(self.tensors.places, len(self.tensors.parameters))
        now = self.tensors.versions(begun.tensors)
        apart = {*begun.copied, *(n for n, place in places if place.owner in caches)}
        rest = [n for n in range(len(now)) if n not in apart]
        moved = [n for n in rest if now[n] != begun.versions[n] or (by_data and memory_of(begun.tensors[n]) in by_data)]
        looks = [name for name, optimizer, before in begun.looks if not same(before, look(optimizer))]
        return [begun.names[number] for number in moved] + looks

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _put_tensors_back(self, caches: set[nn.Module]) -> None:
        """All that have a copy, and the places of those that are buffers; not of ``caches``."""
        begun, written, put = self._begun, set[int](), dict[int, torch.Tensor]()
        places = dict(enumerate(self.tensors.places, len(self.tensors.parameters)))
        stay = {number for number, place in places.items() if place.owner in caches}
        for number, copy in zip(begun.copied, begun.values.complete(), strict=True):
            tensor = begun.tensors[number]
            if number in stay or id(tensor) in put:
                begun.tensors[number] = put.get(id(tensor), tensor)
                continue
            home = parts.local_of(tensor).detach()
            dense = home.layout is torch.strided
            if dense and fits(home, copy) and home.data_ptr() not in written:
                home.copy_(copy)
            else:  # another shape; or two entries have come to share their memory; or a sparse one
                home = copy.to(home.device, copy=True)
                if number < len(self.tensors.parameters):
                    tensor.data = home
                else:
                    begun.tensors[number] = home
            put[id(tensor)] = begun.tensors[number]
            written |= {home.data_ptr()} - {0} if dense else set()
        for number, place in places.items():
            if number not in stay and place.buffer is not (before := begun.tensors[number]):
                place.owner._buffers[place.key] = None if before is NONE else before

    def _put_object_back(self, name: str, obj: Any, state: Frozen) -> bool:
        """Returns whether the object has the state with which the body began."""
        tree, found = state.thawed(self._begun.tensors), list[torch.Tensor]()
        if isinstance(obj, torch.amp.GradScaler):
            vars(obj).update(tree)
            forget_stages(obj)
            return True
        same_plain = equal(state.tree, frozen(self.tensors.state_of(name, obj), found).tree)
        if same_plain and all(a is b for a, b in zip(self._begun.tensors[state.at], found, strict=True)):
            return True
        if name in self.tensors.more:
            tree = {**obj.state_dict(), **tree}
        try:
            capture.load(name, obj, parts.taken(tree), self.tensors.tracked.values())
        except capture.NotTheSame:
            return False
        return True
