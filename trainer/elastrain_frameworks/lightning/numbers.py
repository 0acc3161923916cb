"""What ``training_step`` logs: numbers of the global batch in place of one rank's part.

Lightning's results add up over an epoch. Here each loop body begins with empty ones, and what it has added travels with
the gradients (:meth:`elastrain.Job.add`); the sums over all ranks of a committed step are added in its place. So
warm-ups, micro-batches and discarded executions leave nothing behind, and an epoch's mean has each sample once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torchmetrics import Metric

from elastrain.elastic.job import Job
from elastrain_frameworks.arrives import Arrives
from elastrain_frameworks.attributes import plain_attributes, put_back
from elastrain_frameworks.held import detached, same

_STEP = "training_step"
_WEIGHT = "/weight"
"""Behind the name of a number: the samples that it is a mean over, as Lightning counts them; of a sum: 1."""


class _Sum(NamedTuple):
    """One logged name, as Lightning's results have it."""

    value: float
    """Over the epoch: a sum, or a mean times its weight."""
    weight: int
    last: float | None
    """The number of the last step, if the script logs it."""
    updates: int


_EMPTY = _Sum(0.0, 0, None, 0)


class Numbers(Arrives):
    """Tracked: the sums of the epoch, which joiners continue."""

    def __init__(self, job: Job, trainer: Trainer) -> None:
        self._job, self._trainer = job, trainer
        self._before: dict[str, _Sum] = {}
        """When the execution of the step began."""
        self._summed: set[str] = set()
        """The names that the first body has logged: those of all ranks."""
        self._first = True
        self._attributes: dict[str, Any] = {}
        """The module's, when the execution of the step began."""
        self._of_callbacks: list[tuple[Any, dict[str, Any]]] = []
        """Theirs; those with tensors are tracked."""
        self._given = plain_attributes(trainer.lightning_module)
        self._later: dict[str, Any] = {}
        """The module's that have arrived, until the events of their step are over."""
        self._counts: dict[int, int] = {}
        """Updates of each of the module's metrics before the body."""
        self._counted: dict[str, _Sum] = {}
        """Behind the last committed step: the end of its epoch clears Lightning's."""

    def begin(self) -> None:
        """An execution of a step does."""
        if self._trainer._logger_connector.should_reset_tensors(_STEP):  # an epoch's first step
            self._results.reset(metrics=False, fx=_STEP)
        self._before = {key: _of(metric) for key, metric in self._logged().items()}
        self._attributes = plain_attributes(self._trainer.lightning_module)
        self._of_callbacks = [(one, plain_attributes(one, tensors=False)) for one in self._trainer.callbacks]

    def begin_body(self, batch: Any) -> None:
        """A loop body does, on ``batch``."""
        self._results.batch, self._results.batch_size = batch, None
        for metric in self._logged().values():
            _put(metric, _EMPTY)
        self._counts = {id(metric): metric.update_count for metric in self._metrics()}

    def end_body(self) -> None:
        """``training_step`` has returned. Raises ``ValueError`` naming what cannot be a number of the global batch."""
        assert self._job.body is not None
        logged = {key: metric for key, metric in self._logged().items() if metric.update_count}
        if self._first:
            self._summed, self._first = {*logged}, False
        self._check(logged)
        added: dict[str, float] = {}
        for key in logged.keys() & self._summed:
            metric, mine = logged[key], _of(logged[key])
            mean, weight = metric.meta.is_mean_reduction, 1
            if mean:
                weight = mine.weight if metric.meta.on_epoch else self._job.body.samples
            added[key] = mine.value * (weight if mean and not metric.meta.on_epoch else 1)
            added[key + _WEIGHT] = weight
        self._job.add(**added)

    def counts(self) -> None:
        """The step is committed: its sums become Lightning's."""
        sums = self._job.sums
        for key, metric in self._logged().items():
            before, mine = self._before.get(key, _EMPTY), _of(metric)
            if key in self._summed and (weight := sums.get(key + _WEIGHT, 0.0)):
                last = sums[key] / weight if metric.meta.is_mean_reduction else sums[key]
                mine = _Sum(sums[key] if metric.meta.on_epoch else last, int(weight), last, 1)
            if not mine.updates:
                _put(metric, before)
            elif metric.meta.on_epoch:
                total = before.value + mine.value, before.weight + mine.weight
                _put(metric, _Sum(*total, mine.last if metric.meta.on_step else None, before.updates + 1))
            else:
                _put(metric, mine)
        self._counted = {key: _of(metric) for key, metric in self._logged().items()}

    def undo(self) -> None:
        """The execution does not count."""
        put_back(self._trainer.lightning_module, self._attributes)
        for callback, before in self._of_callbacks:
            put_back(callback, before, tensors=False)
        for key, metric in self._logged().items():
            _put(metric, self._before.get(key, _EMPTY))

    # -- what cannot be ------------------------------------------------------------------------------------------------
    def _check(self, logged: dict[str, Any]) -> None:
        """Raises ``ValueError``."""
        wrong = [
            f"self.log({m.meta.name!r}, reduce_fx={m.meta.reduce_fx.__name__!r}): only sums and means travel with the "
            "gradients"
            for m in logged.values()
            if m.meta.is_max_reduction or m.meta.is_min_reduction
        ]
        wrong += [
            f"self.log({logged[key].meta.name!r}, sync_dist=True): the first batch has not logged it; log it in each"
            for key in sorted(logged.keys() - self._summed)
            if logged[key].meta.sync.should
        ]
        wrong += [
            f"{type(metric).__name__} of torchmetrics: log the mean of each batch as a tensor, or update it in "
            "validation, on all data"
            for metric in self._metrics()
            if metric.update_count != self._counts.get(id(metric), 0)
        ]
        if wrong:
            raise ValueError("\n".join(f"training_step: {one}: each rank would have its own part" for one in wrong))

    def check_hooks(self) -> None:
        """Raises ``ValueError`` naming what other hooks of training have logged as a number of all ranks."""
        found = [
            f"self.log({m.meta.name!r}, {'sync_dist=True' if m.is_tensor else 'a Metric'}) in {m.meta.fx}()"
            for m in self._results.values()
            if not m.is_tensor or (m.meta.sync.should and m.meta.fx != _STEP)
        ]
        if found:
            raise ValueError(
                f"{', '.join(found)}: each rank would have its own part; log it in training_step(), whose tensors are "
                "those of the global batch, or in validation, on all data"
            )

    def _metrics(self) -> list[Metric]:
        return [module for module in self._trainer.lightning_module.modules() if isinstance(module, Metric)]

    @property
    def _results(self) -> Any:
        return self._trainer.fit_loop.epoch_loop._results

    def _logged(self) -> dict[str, Any]:
        results = self._results.items()
        return {key: metric for key, metric in results if metric.is_tensor and metric.meta.fx == _STEP}

    # -- state ---------------------------------------------------------------------------------------------------------
    def present(self) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
        """The sums, and plain attributes that the module has changed."""
        attributes = plain_attributes(self._trainer.lightning_module)
        changed = {name: value for name, value in attributes.items() if not same(value, self._given.get(name, self))}
        return {key: tuple(one) for key, one in self._counted.items()}, detached(changed)

    def apply(self, *, ghost: bool) -> None:
        """Go on with what has arrived; ``ghost``: the end of that step, and perhaps of its epoch, follows."""
        if (received := self.taken()) is None:
            return
        logged, (sums, self._later) = self._logged(), received
        self._counted = {key: _Sum(*one) for key, one in sums.items()}
        over = not ghost and self._job.step % int(self._trainer.num_training_batches) == 0
        for key, one in ({} if over else self._counted).items():
            self._before[key] = one
            if key in logged:
                _put(logged[key], one)
        if not ghost:
            self.events_over()

    def events_over(self) -> None:
        """Those of the step with which the state has come."""
        vars(self._trainer.lightning_module).update(self._later)
        self._later = {}


def _of(metric: Any) -> _Sum:
    weight = int(metric.cumulated_batch_size) if metric.meta.is_mean_reduction else 0
    last = metric._forward_cache
    return _Sum(float(metric.value), weight, None if last is None else float(last), metric.update_count)


def _put(metric: Any, one: _Sum) -> None:
    def number(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=metric.value.dtype, device=metric.value.device)

    metric.value, metric._update_count, metric._computed = number(one.value), one.updates, None
    metric._forward_cache = None if one.last is None else number(one.last)
    metric.has_reset = not one.updates  # Lightning leaves it out of what it shows
    if metric.meta.is_mean_reduction:
        metric.cumulated_batch_size = torch.tensor(one.weight, device=metric.value.device)
