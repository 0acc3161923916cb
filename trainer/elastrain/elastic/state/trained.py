"""Which parameters train, and in which groups of the optimizers: the same on all ranks, in every step.

A script may change it while it runs (late unfreezing, ``add_param_group``). Each rank compares its set in each step
with the one that all ranks have agreed on. A rank whose set has changed takes part in a small collective before its
gradients. If all ranks have changed it in this step, they agree on the new set. A rank that has not changed its set
sums gradients instead, which the header of the sum shows (:mod:`elastrain.elastic.comm.header`). Either way no
gradients of different sets are added, and an unchanged set costs microseconds and no message.

The set belongs to the state: a rank that receives a state, or loads a checkpoint, trains the parameters of that state,
in its groups.

The parameters of the models stay those of the job's first loop (:class:`KnownParameters`). A layer that a script adds
or replaces later begins with values of its own on each rank, and a joiner builds the model without it. It is refused by
name, before its first gradient.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import structlog
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from elastrain.api.shape import ONE_RANK, Shape
from elastrain.data.facts import differing
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import CHANGE_TOGETHER, Kind, RanksDiverged
from elastrain.elastic.state import digest
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.data_order import DataOrder
from elastrain.elastic.state.tracked import is_average
from elastrain.elastic.torch_private import hooked

log = structlog.get_logger(__name__)

_THEN_AND_NOW = "before", "now"
_SHOWN = 3
"""Names of parameters in a message."""


class TrainedSet:
    """The parameters that train and the groups of the tracked optimizers, on this rank. For the training thread."""

    def __init__(self, tracked: Mapping[str, Stateful], data: DataOrder | None = None, shape: Shape = ONE_RANK) -> None:
        """``tracked`` is shared with the runtime; its modules are the models. ``data``: its order is compared, too.
        ``shape``: of a group: ranks of other stages have other layers."""
        self._tracked, self._data, self._stage = tracked, data or DataOrder(), shape.stage
        self._agreed: object = None
        """The signal of the set that all ranks have; None: unknown."""
        self._agreed_on = ""
        self._models: list[tuple[nn.Module, list[nn.Parameter]]] = []
        self._flags: list[tuple[bool, ...]] = []
        self._names: dict[int, str] = {}

    def describe(self) -> str:
        """The set, as JSON: the names of the parameters that train, and of those in each group, with its options."""
        self._look_up()
        names = self._names
        trains = [names[id(p)] for _, parameters in self._models for p in parameters if p.requires_grad]
        groups = {
            name: [
                {"parameters": [names.get(id(p), f"{name}[{g}][{i}]") for i, p in enumerate(group["params"])]}
                | {"options": sorted(str(key) for key in group if key != "params")}
                for g, group in enumerate(optimizer.param_groups)
            ]
            for name, optimizer in self._optimizers()
        }
        return json.dumps({"trains": trains, "groups": groups})

    @property
    def digest(self) -> int:
        """A positive 63-bit number for :meth:`describe`."""
        return digest.of_value(self.describe())

    # -- the same on all ranks ---------------------------------------------------------------------------------------
    def enter(self, *, agreed: bool) -> None:
        """A generation begins. ``agreed``: all its ranks have the same set."""
        self._agreed_on = self.describe()
        self._agreed = self._signal() if agreed else None
        self._data.enter()

    def before_backward(self, communicator: Communicator, *, first: bool, learners: bool) -> bool:
        """A backward follows: return when all ranks train the same parameters, or with a broken communicator.

        Returns whether they may be others than in the backward before.

        ``first``: of its step. ``learners``: some ranks have begun the sums of this step without a backward.
        Raises ``RuntimeError`` if the script has changed the set after the first backward.
        """
        if communicator.broken is not None:
            return True
        same = self._agreed is not None and self._agreed == self._signal()
        if same and (self._data.compared or learners or not first):
            return False
        if not first:
            raise RuntimeError(
                "job.backward(): the parameters that train, or their groups, have changed between the backwards of a "
                "step, so that gradients would cover a part of the batch: change them before the first one"
            )
        check_hooks(self._tracked)
        if learners:
            communicator.abort("the parameters that train change while a rank receives its state")
        else:
            self._agree(communicator)
        return True

    def _agree(self, communicator: Communicator) -> None:
        """Compare the set with those of all ranks. The communicator is *diverged* if they differ."""
        mine = self.describe()
        try:
            rows = communicator.all_gather_ints([digest.of_value(mine), self._data.of_epoch], Kind.TRAINED)
            if others := differing([order for _, order in rows], range(len(rows)), ()):
                self._data.refuse(communicator, others, Kind.TRAINED)
            stages = [self._stage(rank) for rank in range(len(rows))]
            if len({(stage, number) for stage, (number, _) in zip(stages, rows, strict=True)}) > len({*stages}):
                texts = [raw.decode() for raw in communicator.all_gather_bytes(mine.encode(), Kind.TRAINED)]
                with communicator.guard():
                    raise RanksDiverged(_difference_of_ranks(texts, communicator.step, self._stage))
        except GenerationBroken:
            known = communicator.diverged is not None and self._agreed is not None
            if known and (change := _difference(self._agreed_on, mine, *_THEN_AND_NOW)):
                communicator.diverged = f"{communicator.diverged} (rank {communicator.rank}: {change})"
            return
        self._agreed, self._agreed_on, self._data.compared = self._signal(), mine, True

    # -- part of the state -------------------------------------------------------------------------------------------
    def adopt(self, described: str) -> None:
        """Train the parameters of a state that is about to be loaded, in the groups that its optimizers have.

        Groups are added that this rank's script has not added, and those are removed that it has added already: the
        loop body of a step that does not count, or in which the state arrives, may have done so, and runs again.
        Raises ``ValueError`` if the other groups differ.
        """
        before = self.describe()
        if described == before:
            return
        theirs = json.loads(described)
        parameters = {self._names[id(p)]: p for _, known in self._models for p in known}
        trains = set(theirs["trains"])
        for name, parameter in parameters.items():
            if parameter.requires_grad != (name in trains):
                parameter.requires_grad_(name in trains)
        mine = json.loads(before)
        for name, optimizer in self._optimizers():
            groups = [group["parameters"] for group in theirs["groups"].get(name, [])]
            own = [group["parameters"] for group in mine["groups"][name]]
            kept = min(len(own), len(groups))
            more = groups[kept:]
            if groups[:kept] != own[:kept] or not all(p in parameters for group in more for p in group):
                raise ValueError(
                    f"job.track({name}=…): the groups of this optimizer do not fit those of the job's state: "
                    f"{_difference(described, before, 'in the state', 'in this script')}. Begin with the groups "
                    "that the job began with, of parameters of the model: this process receives those that were added"
                )
            del optimizer.param_groups[kept:]
            for group in more:
                optimizer.add_param_group({"params": [parameters[p] for p in group]})
        log.info("parameters train as in the job's state", change=_difference(before, self.describe(), *_THEN_AND_NOW))

    # -- inside ------------------------------------------------------------------------------------------------------
    def _optimizers(self) -> Iterator[tuple[str, torch.optim.Optimizer]]:
        return ((n, o) for n, o in self._tracked.items() if isinstance(o, torch.optim.Optimizer))

    def _look_up(self) -> None:
        """Look the parameters of the models up: a script may have replaced a layer."""
        models = [(n, m) for n, m in self._tracked.items() if isinstance(m, nn.Module) and not is_average(m)]
        self._names = {id(p): f"{name}.{path}" for name, model in models for path, p in model.named_parameters()}
        self._models = [(model, list(model.parameters())) for _, model in models]
        self._flags = [()] * len(models)

    def _signal(self) -> object:
        """Changes whenever the set does; takes microseconds.

        A model of which no parameter requires a gradient is switched off for a moment, as in a GAN: its set stays.
        """
        for number, (_, parameters) in enumerate(self._models):
            flags = tuple([p.requires_grad for p in parameters])
            if True in flags:
                self._flags[number] = flags
        groups = [
            (tuple(map(id, group["params"])), tuple(group)) for _, o in self._optimizers() for group in o.param_groups
        ]
        return self._flags.copy(), groups


def check_hooks(tracked: Mapping[str, Stateful]) -> None:
    """Raises ``RuntimeError`` naming a parameter or layer whose gradients the script would see before they are summed.

    Called as a loop begins, and in its first backward, for hooks that the loop body adds.
    """
    for name, model in tracked.items():
        if isinstance(model, nn.Module) and not is_average(model) and (found := hooked(model)):
            raise RuntimeError(
                f"job.backward(): {found} of {name!r} has a hook that runs within the backward, on gradients of this "
                "rank's samples only, before they are summed over the ranks: remove it (register_hook, "
                "register_post_accumulate_grad_hook, register_full_backward_hook, torch's "
                "_apply_optimizer_in_backward), and read or change p.grad, or call the optimizer, behind job.backward()"
            )


def _difference_of_ranks(texts: list[str], step: int, stage: Callable[[int], int]) -> str:
    """Between the sets of two ranks with the same layers. Pure."""
    first: dict[int, int] = {}
    pairs = [(first.setdefault(stage(rank), rank), rank) for rank in range(len(texts))]
    base, other = next((one, rank) for one, rank in pairs if texts[rank] != texts[one])
    differences = _difference(texts[base], texts[other], f"on rank {base}", f"on rank {other}")
    return (
        f"rank {base} and rank {other} train different parameters in step {step + 1}: {differences}: {CHANGE_TOGETHER}"
    )


def _difference(one: str, other: str, in_one: str, in_other: str) -> str:
    """Between two sets, as :meth:`TrainedSet.describe` returns them. Pure."""
    first, second = json.loads(one), json.loads(other)
    found = []
    for mine, theirs, where in ((first, second, in_one), (second, first, in_other)):
        if only := [name for name in mine["trains"] if name not in set(theirs["trains"])]:
            found.append(f"{_some(only)} train only {where}")
    for name in sorted({*first["groups"], *second["groups"]}):
        mine, theirs = first["groups"].get(name, []), second["groups"].get(name, [])
        if len(mine) != len(theirs):
            found.append(f"{name!r} has {len(mine)} groups {in_one}, {len(theirs)} {in_other}")
            continue
        for number, (group, group_of_other) in enumerate(zip(mine, theirs, strict=True)):
            found += [
                f"group {number} of {name!r} has the {kind} {_some(group[kind])} {in_one}, "
                f"{_some(group_of_other[kind])} {in_other}"
                for kind in ("parameters", "options")
                if group[kind] != group_of_other[kind]
            ]
    return "; ".join(found)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


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
        """Look the parameters up; from now on they stay. Raises as :meth:`check` and :func:`check_hooks`."""
        self.check()
        check_hooks(self._tracked)
        for name, model in self._tracked.items():
            if not isinstance(model, nn.Module) or is_average(model):
                continue
            self._known.setdefault(name, dict(model.named_parameters()))

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
                    f"job.steps(): {_shown(name, younger)} not in the model when the first loop began: each rank would "
                    "begin with other values, and a joiner builds the model without them. Build all layers before "
                    "job.wrap(), and begin to train them later by requires_grad_(True)"
                )
            present = {id(p) for p in now.values()}
            if removed := [path for path, p in known.items() if id(p) not in present]:
                raise RuntimeError(
                    f"job.steps(): {_shown(name, removed)} in the model when the first loop began, and removed since: "
                    "a joiner builds the model with them. Leave them in it, with requires_grad_(False)"
                )

    def close(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def _note(self) -> None:
        self._changed = True


def _shown(model: str, names: list[str]) -> str:
    return f"parameters {_some([f'{model}.{name}' for name in names])} were"
