"""Tracked objects: their state moves with the job, and their methods keep the contract.

The contract is :mod:`elastrain.elastic.contract`. One loop body therefore serves the warm-up, the first, a middle and
the last micro-batch, and a discarded step, without an ``if``.
"""

from __future__ import annotations

import copyreg
import functools
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, SupportsIndex

import torch
from torch import nn

from elastrain.elastic.commit.updates import Update, Updates
from elastrain.elastic.contract import Call, Contract
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.torch_private import uncompiled

UPDATES_OF_SCALER = ("unscale_", "step", "update")
UPDATES_OF_AVERAGE = ("update_parameters", "update", "set")
Closure = Callable[[], Any]


class Around(Protocol):
    """As of :meth:`Updates.of`, of one call."""

    def __call__(self, *, acts: bool) -> AbstractContextManager[None]: ...


class StepWith(Protocol):
    """Runs ``step(closure)`` of an optimizer."""

    def __call__(self, step: Callable[[Closure], Any], closure: Closure, *, once: bool) -> Any:
        """``once``: ``step`` calls its closure once, before it changes anything. Returns the closure's value."""


class Longer(Protocol):
    """The step under way, which takes several batches of the script."""

    @property
    def span(self) -> int:
        """How many; 1 outside of a step."""

    @property
    def learning_rate(self) -> float:
        """What the script's learning rate is multiplied by."""


class Tracker:
    """Adds objects to those whose state moves with the job, and makes their methods keep the contract."""

    def __init__(
        self,
        tracked: dict[str, Stateful],
        contract: Contract,
        step_with: StepWith,
        longer: Longer | None = None,
        updates: Updates | None = None,
        *,
        update: Callable[[], AbstractContextManager[object]] = nullcontext,
        changes: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """``tracked`` is shared with the runtime. ``step_with`` runs an optimizer's ``step(closure)``. ``longer``: of a
        job whose steps take several batches of the script. ``updates``: notes the calls. ``update()``: around an
        optimizer's ``step()``. ``changes()``: around each call that changes tensors of the state."""
        self._tracked, self._contract, self._step_with = tracked, contract, step_with
        self._longer, self._update, self._updates = longer, update, updates or Updates()
        self._changes = changes
        self._models = 0
        """Those that were wrapped."""
        self._scaled: tuple[torch.Tensor, torch.Tensor] | None = None

    def names_of_model(self, module: nn.Module, name: str | None) -> tuple[str, str]:
        """The names of a model, and of its optimizer, which ``job.wrap(module, name=name)`` adds.

        Raises ``ValueError`` for a name that is taken, and for a model that is tracked.
        """
        inner = uncompiled(module)
        if any(obj is inner for obj in self._tracked.values()):
            raise ValueError("job.wrap(net): this model is wrapped already: call it once, and use what it returned")
        number = "" if not self._models else str(self._models + 1)
        key, of_optimizer = (name, f"{name}_optimizer") if name else (f"model{number}", f"optimizer{number}")
        if key in self._tracked:
            raise ValueError(f"job.wrap(name={key!r}): an object is already tracked under this name; give another one")
        return key, of_optimizer

    def add_model(self, name: str, module: nn.Module) -> None:
        """Add a model that was wrapped."""
        self._models += 1
        self._tracked[name] = uncompiled(module)

    def track(self, objects: Mapping[str, Any]) -> None:
        """Add ``objects``, by name. Raises ``TypeError`` or ``ValueError`` naming the object."""
        for name, obj in objects.items():
            if name in self._tracked:
                raise ValueError(f"job.track({name}=...): an object is already tracked under this name")
            if _trains(obj) and not is_average(obj):
                raise TypeError(f"job.track({name}=...): it trains: use job.wrap(), or call its requires_grad_(False)")
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
                self._track_inner(name, obj)
            self._tracked[name] = obj

    def _track_inner(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Add the optimizers that this one holds (SAM, Lookahead): its ``state_dict`` need not have their state.

        They come first: the outer one's ``load_state_dict`` may share its groups with them.
        """
        for attribute, inner in list(vars(optimizer).items()):
            known = any(obj is inner for obj in self._tracked.values())
            if isinstance(inner, torch.optim.Optimizer) and inner.state is not optimizer.state and not known:
                self.gate(inner, {"step": Call.UPDATE})
                self._tracked[f"{name}.{attribute}"] = inner

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
            in_instance = vars(obj).get(name)
            original = getattr(type(obj), name) if in_instance is None else _without_self(in_instance)
            if self._longer is not None and name == "step":
                original = _lengthened(obj, original, self._longer)
            within = original if _is_schedule(obj) else _within(original, self._changes)
            if name == "step" and not _is_schedule(obj):
                within = _within(within, self._update)
            around = functools.partial(self._updates.of, Update(id(obj), name, _steps(obj, name)))
            label = f"{type(obj).__name__}.{name}()"
            gated = _gated(within, functools.partial(self._contract.acts, call, label, of=(id(obj), name)), around)
            if isinstance(obj, torch.optim.Optimizer):
                gated = _with_closure(original, gated, self._step_with, around)
            if in_instance is None:
                in_class[name] = gated
            else:  # a bound method: schedulers ask an optimizer's step for __func__
                setattr(obj, name, types.MethodType(gated, obj))
        if in_class:
            subclass(obj, in_class)

    def check_parameters(self, model: nn.Module) -> None:
        """Raises ``ValueError`` if a tracked optimizer trains parameters outside of ``model``, all wrapped models.

        Their gradients would stay on each rank, and their values would reach no joiner.
        """
        known = {id(p) for p in model.parameters()}
        for name, obj in self._tracked.items():
            groups = obj.param_groups if isinstance(obj, torch.optim.Optimizer) else []
            if any(p.requires_grad and id(p) not in known for group in groups for p in group["params"]):
                raise ValueError(
                    f"job.track({name}=…): this optimizer trains parameters of no model that was given to job.wrap(), "
                    "so the ranks would come to differ: wrap them too, for instance job.wrap(nn.ParameterList([p]))"
                )

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

        subclass(optimizer, {"add_param_group": add_param_group})

    def _watch_scale(self, scaler: Any) -> None:
        original = type(scaler).scale

        @functools.wraps(original)
        def scale(this: Any, outputs: Any) -> Any:
            scaled = original(this, outputs)
            if isinstance(outputs, torch.Tensor):
                self._scaled = (scaled, outputs)
            return scaled

        subclass(scaler, {"scale": scale})


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


def _steps(obj: Any, name: str) -> bool:
    """Whether this method updates the parameters."""
    return name == "step" and (isinstance(obj, torch.optim.Optimizer) or is_scaler(obj))


def subclass(obj: Any, methods: Mapping[str, Any], *before: type) -> None:
    """Replace ``methods`` of ``obj``, by a class of its own, with ``before`` before its own class. A copy or a pickle
    of ``obj`` is of the class that it had."""
    own: Any = type(obj)

    def reduce(self: Any, protocol: SupportsIndex) -> Any:
        make, arguments, *state = own.__reduce_ex__(self, protocol)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle refuses it for another class
            make = object.__new__
        return make, tuple(own if each is type(self) else each for each in arguments), *state

    named = {"__module__": own.__module__, "__reduce_ex__": reduce}
    obj.__class__ = type(own.__name__, (*before, own), {**named, **methods})


def _without_self(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method


def _with_closure(
    original: Callable[..., Any], gated: Callable[..., Any], step_with: StepWith, around: Around
) -> Callable[..., Any]:
    """``gated``, an optimizer's ``step``, with calls that pass a closure given to ``step_with``."""
    # torch's optimizers evaluate a closure once, before the update; only L-BFGS does so between its updates.
    home = getattr(original, "__module__", "")
    once = home.startswith("torch.optim.") and home != "torch.optim.lbfgs"

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        given, others = (args[0], args[1:]) if args else (kwargs.get("closure"), ())
        if given is None:
            return gated(self, *args, **kwargs)
        named = {name: value for name, value in kwargs.items() if name != "closure"}
        with around(acts=True):
            return step_with(lambda closure: original(self, closure, *others, **named), given, once=once)

    return method


def _lengthened(obj: Any, original: Callable[..., Any], longer: Longer) -> Callable[..., Any]:
    """``original``, the ``step`` of ``obj``, for a step of several batches.

    An optimizer updates with the scaled learning rate, which it has during the update only: schedulers see the
    script's. A scheduler takes as many steps as there are batches, so that it ends where it would without.
    """
    if isinstance(obj, torch.optim.Optimizer):

        @functools.wraps(original)
        def update(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            rates = [group["lr"] for group in self.param_groups]
            try:
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate * longer.learning_rate
                return original(self, *args, **kwargs)
            finally:
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate

        return update
    if not isinstance(obj, torch.optim.lr_scheduler.LRScheduler):
        return original

    @functools.wraps(original)
    def steps(self: Any, *args: Any, **kwargs: Any) -> None:
        for _ in range(1 if args or kwargs else longer.span):
            original(self, *args, **kwargs)

    return steps


def _is_schedule(obj: Any) -> bool:
    return is_scaler(obj) or isinstance(obj, torch.optim.lr_scheduler.LRScheduler)


def _within(original: Callable[..., Any], context: Callable[[], AbstractContextManager[object]]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        with context():
            return original(*args, **kwargs)

    return method


def _gated(original: Callable[..., Any], acts: Callable[[], bool], around: Around) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        does = acts()
        with around(acts=does):
            return original(*args, **kwargs) if does else None

    return method


class Variables:
    """What :meth:`elastrain.Job.variables` returns: each value is an attribute, to be read and set.

    They are the same on all ranks and travel with the state: the best result, a patience, a count. Only the names with
    which it was made can be set, so that a slip of the pen is an error.
    """

    def __init__(self, values: Mapping[str, Any], acts: Callable[[str], bool]) -> None:
        """``acts(name)``: whether setting this value counts now; raises where that is an error."""
        vars(self).update(_values=dict(values), _acts=acts)

    def __getattr__(self, name: str) -> Any:
        """Raises ``AttributeError`` for another name."""
        values = vars(self).get("_values", {})
        if name not in values:
            raise AttributeError(self._unknown(name) if values else name)
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ``AttributeError`` for another name, ``RuntimeError`` before the backward of a loop body."""
        if name not in self._values:
            raise AttributeError(self._unknown(name))
        if self._acts(f"job.variables().{name} = …"):
            self._values[name] = value

    def _unknown(self, name: str) -> str:
        return f"{name}: job.variables() was called with {', '.join(self._values)}: add {name}= there"

    def __repr__(self) -> str:
        return f"Variables({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def state_dict(self) -> dict[str, Any]:
        """The values by name."""
        return dict(self._values)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the values of ``state``; names that it does not have keep theirs."""
        self._values.update({name: value for name, value in state.items() if name in self._values})
