"""What a script passes to the calls of :class:`elastrain.Job`: one check for each call, before the call does anything.

An error names the call, the value and the way out. It is raised in the line of the script: torch, or a later step,
would fail in a place that says nothing of the cause.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.utils.data import DataLoader

from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order

_Method = TypeVar("_Method", bound=Callable[..., Any])

_OF_LOADER = (
    "num_workers", "collate_fn", "pin_memory", "prefetch_factor", "timeout", "worker_init_fn",
    "multiprocessing_context", "pin_memory_device",
)  # fmt: skip
"""Options of torch's ``DataLoader`` that ``job.dataloader()`` passes on."""
_INSTEAD = {
    "batch_size": "global_batch_size=…, the samples of one optimizer step over all ranks",
    "persistent_workers": "leave it out: worker processes persist over a rescale, and are forked anew with each loop "
    "and epoch, so that all ranks load the data set as the script has it then",
    "generator": "seed=…: the order depends on the seed and the step only",
    "in_order": "leave it out: batches come in the order of the steps",
    "num_replicas": "leave it out: each global batch is cut for the ranks of its step",
    "rank": "leave it out: each global batch is cut for the ranks of its step",
}
"""Options that are written for a fixed number of ranks, and what to give instead."""


def checked(method: _Method) -> _Method:
    """``method`` of ``Job``, called after the check of its name, below, has passed."""
    check = globals()[method.__name__]

    @functools.wraps(method)
    def call(job: Any, *args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return method(job, *args, **kwargs)

    return cast(_Method, call)


# -- set-up ------------------------------------------------------------------------------------------------------------
def wrap(module: Any = None, *unnamed: Any, optimizer: Any = None, **_: Any) -> None:
    """Of ``job.wrap()``."""
    if unnamed:
        raise TypeError(f"job.wrap(…, {_kind(unnamed[0])}): by name: job.wrap(net, optimizer=optimizer)")
    if not isinstance(module, nn.Module):
        raise TypeError(f"job.wrap({_kind(module)}): takes the model, an nn.Module: job.wrap(net, optimizer=optimizer)")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"job.wrap(optimizer={_kind(optimizer)}): takes one torch.optim.Optimizer; give further objects a name: "
            "job.track(optimizer2=…)"
        )


def track(*unnamed: Any, **_: Any) -> None:
    """Of ``job.track()``."""
    if unnamed:
        example = "optimizer=optimizer" if isinstance(unnamed[0], torch.optim.Optimizer) else "name=…"
        raise TypeError(
            f"job.track({_kind(unnamed[0])}): an object has a name in the job's state: job.track({example})"
        )


def variables(*unnamed: Any, **values: Any) -> None:
    """Of ``job.variables()``."""
    if unnamed or not values:
        raise TypeError("job.variables(): give each value a name: kept = job.variables(best=0.0, bad=0)")


def on_commit(callback: Any = None) -> None:
    """Of ``job.on_commit()``."""
    _callable("job.on_commit", callback)


def dataloader(dataset: Any = None, *unnamed: Any, **options: Any) -> None:
    """Of ``job.dataloader()``; :func:`elastrain.data.options.order_of` checks the order."""
    if unnamed:
        raise TypeError(
            f"job.dataloader(…, {_kind(unnamed[0])}): by name: job.dataloader(dataset, global_batch_size=…)"
        )
    if isinstance(dataset, DataLoader | ElasticLoader):
        raise TypeError(
            f"job.dataloader({_kind(dataset)}): takes the data set; it replaces DataLoader and its sampler: "
            "job.dataloader(loader.dataset, global_batch_size=…)"
        )
    for name in ("global_batch_size", "micro_batch_size", "micro_batches", "seed"):
        if options.get(name) is not None:
            _whole(f"job.dataloader({name}=…)", options[name])
    for name in options:
        if name in _INSTEAD:
            raise TypeError(f"job.dataloader({name}=…): {_INSTEAD[name]}")
        if name not in (*_OF_LOADER, *_OF_ORDER):
            raise TypeError(
                f"job.dataloader({name}=…): no such option: must be one of {', '.join((*_OF_ORDER, *_OF_LOADER))}"
            )
    if options.get("randomness", "keyed") not in ("keyed", "own"):
        raise ValueError(f"job.dataloader(randomness={options['randomness']!r}): must be 'keyed' or 'own'")


_OF_ORDER = (
    "global_batch_size", "seed", "shuffle", "sampler", "batch_sampler", "drop_last", "micro_batch_size",
    "micro_batches", "randomness", "accept_change",
)  # fmt: skip


# -- the loop ----------------------------------------------------------------------------------------------------------
def steps(loader: Any = None, *unnamed: Any, epochs: Any = None, steps: Any = None, **_: Any) -> None:
    """Of ``job.steps()``."""
    _loader("job.steps", loader)
    if unnamed:
        raise TypeError(f"job.steps(loader, {unnamed[0]!r}): by name: epochs=… or steps=…, where training ends")
    if (epochs is None) == (steps is None):
        raise ValueError(f"job.steps(epochs={epochs}, steps={steps}): give one of them: where training ends")
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None:
            _whole(f"job.steps({name}=…)", value)
    if epochs is not None and loader.order.length is None:
        raise ValueError("job.steps(epochs=…): the data set has no length, so an epoch has no end; give steps=…")


def epochs(loader: Any = None, epochs: Any = None) -> None:
    """Of ``job.epochs()``."""
    if not isinstance(getattr(loader, "order", None), Order):  # of an adapter, as accelerate's prepared one
        _loader("job.epochs", loader)
    _whole("job.epochs(loader, epochs)", epochs)
    if loader.order.length is None:
        raise ValueError(
            "job.epochs(loader): the data set has no length, so an epoch has no end: leave this loop out, and give "
            "job.steps(loader, steps=...)"
        )


def every(steps: Any = None, function: Any = None) -> None:
    """Of ``job.every()``."""
    if callable(steps):
        raise TypeError("job.every(function, …): first the steps, then the function: job.every(500, evaluate)")
    _whole("job.every(steps, …)", steps)
    _callable("job.every", function)


def at(step: Any = None, change: Any = None) -> None:
    """Of ``job.at()``."""
    if callable(step):
        raise TypeError("job.at(change, …): first the step, then the function: job.at(500, unfreeze)")
    _whole("job.at(step, …)", step)
    _callable("job.at", change)


def fit(step_fn: Any = None, loader: Any = None, **bounds: Any) -> None:
    """Of ``job.fit()``."""
    _callable("job.fit", step_fn)
    _loader("job.fit", loader)


def evaluate(loader: Any = None, fn: Any = None) -> None:
    """Of ``job.evaluate()``; :class:`elastrain.elastic.body.evaluation.Batches` checks the loader."""
    if fn is not None and not callable(fn):
        swapped = ": first the loader, then the function" if callable(loader) else ""
        raise TypeError(f"job.evaluate(loader, {_kind(fn)}){swapped}: fn(batch) must return a dict of sums")


def backward(loss: Any = None, **_: Any) -> None:
    """Of ``job.backward()``: what torch refuses in its own words, in the middle of the backward."""
    if isinstance(loss, FunctionType | MethodType | partial):
        return  # a schedule: of sharded models
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"job.backward({_kind(loss)}): {_tensor_of(loss)}")
    if loss.numel() != 1:
        raise ValueError(
            f"job.backward(loss): a tensor of shape {tuple(loss.shape)}: must be one number, the mean over the samples "
            "of this batch: loss.mean() (or loss.sum(), with count=…)"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"job.backward(loss): {loss.dtype} without a graph, so that it depends on no parameter: it was computed "
            "under torch.no_grad() or torch.inference_mode(), or from .detach(), .data, .item(), argmax() or integers; "
            "or all parameters are frozen. Pass the loss as the loss function returns it"
        )
    if loss.is_complex():
        raise ValueError(f"job.backward(loss): {loss.dtype}: must be real, for instance loss.abs()")


def clip_grad_norm_(max_norm: Any = None, norm_type: Any = 2.0, *_: Any, **__: Any) -> None:
    """Of ``job.clip_grad_norm_()``; torch's function of this name takes the parameters first."""
    if not isinstance(max_norm, int | float) and not (isinstance(max_norm, torch.Tensor) and max_norm.numel() == 1):
        raise TypeError(
            f"job.clip_grad_norm_({_kind(max_norm)}): takes the largest norm, and clips all parameters of the wrapped "
            "models: job.clip_grad_norm_(1.0)"
        )
    if not isinstance(norm_type, int | float):
        raise TypeError(f"job.clip_grad_norm_(norm_type={norm_type!r}): must be a number")


# -- inside ------------------------------------------------------------------------------------------------------------
def _loader(call: str, loader: Any) -> None:
    """Raises ``TypeError`` if ``loader`` is not of ``job.dataloader()``."""
    if isinstance(loader, ElasticLoader):
        return
    if isinstance(getattr(loader, "iterable", None), ElasticLoader):  # tqdm
        raise TypeError(f"{call}({_kind(loader)}): put it around the steps: {_kind(loader)}(job.steps(loader, …))")
    instead = "job.dataloader(dataset, global_batch_size=…)"
    if isinstance(loader, DataLoader):
        instead = "job.dataloader(loader.dataset, global_batch_size=…), which replaces DataLoader and its sampler"
    raise TypeError(
        f"{call}({_kind(loader)}): its batches cannot be cut for another number of ranks: give it {instead}"
    )


def _whole(what: str, value: Any) -> None:
    try:
        whole = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        whole = None
    if whole is None:
        raise TypeError(f"{what}: {value!r}: must be a whole number")
    if whole < 0:
        raise ValueError(f"{what}: {value!r}: must be 0 or more")


_BEFORE = {"job.every": "500, ", "job.at": "500, "}


def _callable(call: str, function: Any) -> None:
    if not callable(function):
        raise TypeError(
            f"{call}(…): {_kind(function)} instead of a function: pass the function without calling it, for instance "
            f"{call}({_BEFORE.get(call, '')}scheduler.step{', loader' if call == 'job.fit' else ''})"
        )


def _tensor_of(loss: Any) -> str:
    """Where the tensor is that the script means."""
    found = loss.get("loss") if isinstance(loss, Mapping) else getattr(loss, "loss", None)
    if isinstance(found, torch.Tensor):
        return "pass the loss in it: " + ('output["loss"]' if isinstance(loss, dict) else "output.loss")
    if isinstance(loss, int | float):
        return "a number has no graph: pass the tensor, without .item() or float()"
    if isinstance(loss, list | tuple):
        return "add the losses up to one tensor: sum(losses)"
    return "must be the loss, a tensor of one number"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
