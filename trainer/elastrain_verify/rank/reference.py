"""The job's interface in plain torch: one process, no agent, no peers. What the job's model must be equal to.

A second implementation, as short as possible. It shares only the order of the data and the keys of random numbers with
the runtime: these are the job's by definition; torch's own loader loads. No step is repeated, and there is no warm-up.
To cut a global batch into parts (``micro_batch_size``, or those of several ranks), the loop body runs for each, and the
gradients are added here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from elastrain.data.changes import Changes
from elastrain.data.draws import begin
from elastrain.data.loader import ElasticLoader
from elastrain.data.options import order_of
from elastrain.data.order import Slice
from elastrain_verify.rank.data import Batches, Watched
from elastrain_verify.rank.evaluation import evaluate
from elastrain_verify.rank.gated import Body, Values, Wrapped, gated, skipped


class Reference(AbstractContextManager["Reference"]):
    """As :class:`elastrain.Job`, which documents the calls."""

    rank, world_size, epoch, step = 0, 1, 0, 0
    loss: float | None = None
    chooses_batch = switches = _at_boundary = False
    _last = property(lambda self: self._body == len(self._bodies) - 1 or not self._bodies)  # part of the step, or none
    sums = property(lambda self: dict(self._added))
    synchronised = committed = property(lambda self: self._last and self._backwards > 0)
    effective_samples = property(lambda self: float(self._order.samples_before(self.step)) if self._order else 0.0)

    def __init__(self, parts: Sequence[tuple[int, int]] = ()) -> None:
        """``parts``: (step, number of parts): from this step on, of each global batch."""
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.tracked: dict[str, Any] = {}
        self.draws, self.changes = Watched(), Changes()
        self._parts = parts
        self._order: Any = None
        self._wrapped: list[nn.Parameter] = []  # if they are sharded, a forward puts whole ones in their place
        self._models: list[nn.Module] = []
        self._callbacks: list[Callable[[], None]] = []
        self._pauses: list[tuple[int, Callable[[], None]]] = []
        self._bodies: list[Slice] = []  # the parts of the step under way
        self._body = self._backwards = 0
        self._losses = self._count = 0.0
        self._sums: dict[nn.Parameter, torch.Tensor] = {}
        self._added: dict[str, float] = {}
        self._asked = self._stops = self._stopped = False
        self._scaled: tuple[Any, Any] = (None, None)

    # -- values and set-up ---------------------------------------------------------------------------------------------
    @property
    def mesh(self) -> Any:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        return init_device_mesh(self.device.type, (1,), mesh_dim_names=("dp_shard",))

    def acts(self, call: Any, name: str) -> bool:
        return bool(self._last)

    def wrap(self, module: nn.Module, *, optimizer: Any = None, name: str | None = None, **_of_ddp: Any) -> nn.Module:
        number = "" if not self._models else str(len(self._models) + 1)
        self._models, self._wrapped = [*self._models, module], [*self._wrapped, *module.parameters()]
        self.tracked[name or f"model{number}"] = getattr(module, "_orig_mod", module)
        if optimizer is not None:
            self.track(**{f"{name}_optimizer" if name else f"optimizer{number}": optimizer})
        return Wrapped(module, self.draws)

    def track(self, **objects: Any) -> None:
        for name, obj in objects.items():
            self.tracked[name] = obj
            if callable(vars(obj).get("step")):  # a scheduler has put it there
                vars(obj)["step"] = skipped(vars(obj)["step"], self, obj)
            elif calls := {m: skipped(f, self, obj) for m in gated(obj) if callable(f := getattr(type(obj), m, None))}:
                if "unscale_" in calls:
                    calls["scale"] = staticmethod(partial(self._scale, obj.scale))
                obj.__class__ = type(type(obj).__name__, (type(obj),), calls)

    def _scale(self, original: Any, loss: Any) -> Any:
        self._scaled = (original(loss), loss)
        return self._scaled[0]

    def variables(self, **values: Any) -> Any:
        self.track(variables=(made := Values(**values)))
        return made

    def on_commit(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(self.draws.of_step("commit", callback, lambda: self.step - 1))

    def dataloader(self, dataset: Any, *, randomness: str = "keyed", **options: Any) -> ElasticLoader:
        chosen: dict[str, Any] = {"seed": 0, "drop_last": False, "shuffle": None, "global_batch_size": None}
        chosen |= {name: options.pop(name) for name in inspect.signature(order_of).parameters.keys() & options.keys()}
        return ElasticLoader(dataset, partial(order_of, dataset, **chosen), keyed=randomness == "keyed", **options)

    # -- the loop ------------------------------------------------------------------------------------------------------
    def steps(
        self,
        loader: ElasticLoader,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        several_backwards: bool = False,
        warm_up: Any = None,
    ) -> Iterator[Any]:
        self._order = loader.begin_loop(self.step, lambda order: order.behind(self._order, self.step))
        self.draws.announced |= several_backwards
        total = steps or self._order.end_of(epochs or 0)
        with self.draws.loop(loader.randomness, lambda: self.step):
            if warm_up is not None:
                yield
            batches = Batches(loader, self._parts)
            while self.step < total and not self._stopped:
                yield from self._compute(batches)
                if self._at_boundary:
                    self._at_boundary = False
                    yield
                for function in (function for interval, function in self._pauses if self.step % interval == 0):
                    function()

    def commit(self, bodies: Iterator[Any]) -> None:
        self._at_boundary = True
        next(bodies, None)

    @property
    def body(self) -> Body | None:
        number = max(self._body, 0)
        return Body(self.step, self.step, number, False, len(self._bodies[number].indices)) if self._bodies else None

    def _compute(self, batches: Batches) -> Iterator[Any]:
        self.changes.before_step(self.step)
        self._bodies, self._body = batches.begin(self.step), -1
        self.epoch, self._losses, self._count, self._sums = self._bodies[0].epoch, 0.0, 0.0, {}
        self._added, before = {}, self.loss
        try:
            for part in self._bodies:
                self._body, self._backwards, self.loss = self._body + 1, 0, before
                with self.draws.kept():
                    batch = next(batches)
                    with self.draws.body(self.step, part):
                        yield batch
                if not self._backwards:
                    raise RuntimeError("job.steps(): the loop body must call job.backward(loss) once per batch")
        except GeneratorExit:  # the script broke out of the loop
            if self.committed:
                self._commit()
            raise
        self._commit()

    def _commit(self) -> None:
        self.step, self.loss, self._stopped = self.step + 1, self._losses, self._stops
        for callback in self._callbacks:
            callback()
        self.observe()
        self._bodies, self._backwards = [], 0

    def observe(self) -> None:
        """A step is committed, and its callbacks have run."""

    def backward(self, loss: torch.Tensor, *, count: Any = None, retain_graph: bool = False) -> torch.Tensor:
        self.loss = (value := self._backward(loss, count, retain_graph=retain_graph)).item()
        return value

    def _backward(self, loss: torch.Tensor, count: Any, *, retain_graph: bool) -> torch.Tensor:
        unscaled = self._scaled[1] if self._scaled[0] is loss else loss
        count, self._backwards = None if count is None else int(count), self._backwards + 1
        self.draws.samples()
        self._stops = self._asked if self._last else self._stops
        if len(self._bodies) == 1:
            divisor = max(1 if count is None else count, 1)
            (loss if divisor == 1 else loss / divisor).backward(retain_graph=retain_graph)
            self._losses = float(unscaled.detach()) / divisor
            self.draws.summed()
            return torch.tensor(self._losses, dtype=torch.float64)
        if self._backwards > 1:
            raise RuntimeError("job.backward(): several in a loop body need the whole batch at once")
        part = self._bodies[self._body]
        weight = part.weight if count is None else float(bool(part.indices))
        kept = [(p, p.grad) for p in self._parameters()]
        for p, _ in kept:
            p.grad = None
        loss.backward(retain_graph=retain_graph)
        for p, before in kept:
            if p.grad is not None:
                self._sums[p] = self._sums[p] + p.grad * weight if p in self._sums else p.grad * weight
            p.grad = before
        self._losses += float(unscaled.detach()) * weight
        self._count += (count or 0) * bool(part.indices)
        if not self._last:
            return unscaled.detach()
        divisor = 1 if count is None else max(self._count, 1)
        for p, gradient in self._sums.items():
            p.grad = gradient / divisor if p.grad is None else p.grad + gradient / divisor
        self._losses /= divisor
        self.draws.summed()
        return torch.tensor(self._losses, dtype=torch.float64)

    def _parameters(self) -> list[nn.Parameter]:
        return list(dict.fromkeys([*self._wrapped, *(p for model in self._models for p in model.parameters())]))

    def add(self, **numbers: float) -> None:
        for name, number in numbers.items():
            self._added[name] = self._added.get(name, 0.0) + float(number) * bool(self._bodies[self._body].indices)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor | None:
        return nn.utils.clip_grad_norm_(self._parameters(), max_norm, norm_type) if self._last else None

    def epochs(self, loader: ElasticLoader, epochs: int) -> Iterator[int]:
        return (begin(loader.randomness, "epoch", epoch) for epoch in range(epochs))

    def every(self, steps: int, function: Callable[[], None]) -> None:
        self._pauses.append((steps, self.draws.of_step("every", function, lambda: self.step)))

    def at(self, step: int, change: Callable[[], None]) -> None:
        self.changes.add(step, self.draws.of_step("at", change, lambda: step))

    def stop(self) -> None:
        self._asked = True

    def fit(self, step_fn: Callable[[Any], torch.Tensor], loader: ElasticLoader, **bounds: Any) -> None:
        optimizers = [o for o in self.tracked.values() if isinstance(o, torch.optim.Optimizer)]
        others = [o for o in self.tracked.values() if hasattr(o, "step") and o not in optimizers]
        for batch in self.steps(loader, **bounds):
            _ = [optimizer.zero_grad() for optimizer in optimizers]
            self.backward(step_fn(batch))
            _ = [obj.step() for obj in (*optimizers, *others)]

    # -- between loops -------------------------------------------------------------------------------------------------
    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        return value / 1 if op == "mean" else value

    def all_gather_object(self, value: Any) -> list[Any]:
        return [value]

    def evaluate(self, loader: Any, fn: Callable[[Any], Any]) -> dict[str, Any]:
        return evaluate([obj for obj in self.tracked.values() if isinstance(obj, nn.Module)], loader, fn)

    def __exit__(self, *_: object) -> None:
        pass
