"""The job, or its reference, in a run of ``elastrain verify``: bounded, in float64, recorded, held at chosen steps."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastrain.api import names
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import ENDLESS, Order, Slice
from elastrain.elastic.commit.step import Step
from elastrain.elastic.job import Job
from elastrain.elastic.start import join as join_job
from elastrain.elastic.state.handover import Handover
from elastrain.elastic.torch_private import BatchNorm
from elastrain_verify.history import BATCH, OWN_LOOP
from elastrain_verify.rank import precision, record, seeds, variables
from elastrain_verify.rank.reference import Reference
from elastrain_verify.settings import Settings, position

POLL_SECONDS = 0.005


def join(*, numerics: str = "exact") -> Any:
    """What ``elastrain.join()`` is in a run of ``elastrain verify``. Raises as it."""
    settings = Settings.of_environment()
    seeds.begin()
    record.watch_constructors()
    if settings.dtype == "float64":
        precision.use_float64()
    worker = os.environ.get(names.ENV_WORKER, "reference")
    recorder = record.Recorder(settings.records, pid=os.getpid(), worker=worker, mode=settings.mode)
    if settings.mode == "reference":
        if numerics == "bitwise":
            torch.use_deterministic_algorithms(True)
        record.cuts = settings.shards
        return WatchedReference(settings, recorder)
    job = join_job(numerics=numerics)  # type: ignore[arg-type]
    job.__class__ = WatchedJob
    assert isinstance(job, WatchedJob)
    job.begin(settings, recorder)
    return job


@dataclass(frozen=True, slots=True)
class Bounded(Order):
    """The order of a run, whose loops end after ``last`` steps."""

    last: int = field(default=ENDLESS, compare=False)

    def end_of(self, epochs: int) -> int:
        return min(Order.end_of(self, epochs), self.last)


class Watched:
    """What both have in common; a class before :class:`Job` or :class:`Reference`."""

    settings: Settings
    recorder: record.Recorder
    began: float | None = None
    own_loop = False
    """Whether a framework's own loop trains, instead of :meth:`steps` with :meth:`backward`."""
    _called = 0
    """Callbacks of this step."""

    def begin(self, settings: Settings, recorder: record.Recorder) -> None:
        self.settings, self.recorder = settings, recorder
        self._gradients: dict[str, Any] = {}
        """Of this step, as its last backward has left them."""
        self._batches: dict[str, str] = {}
        """Of this step: digests, by the place in the global batch."""

    # -- in float64 ----------------------------------------------------------------------------------------------------
    def wrap(self, module: Any, **options: Any) -> Any:
        if self.settings.dtype == "float64":
            precision.cast_module(module)
            precision.cast_copies()
        return super().wrap(module, **options)  # type: ignore[misc]

    def track(self, **objects: Any) -> None:
        for obj in objects.values():
            if self.settings.dtype == "float64" and isinstance(obj, nn.Module):
                precision.cast_module(obj)
        super().track(**objects)  # type: ignore[misc]

    def evaluate(self, loader: Any, fn: Callable[[Any], Mapping[str, Any]]) -> Any:
        return super().evaluate(loader, lambda batch: fn(self._cast(batch)))  # type: ignore[misc]

    def _cast(self, batch: Any) -> Any:
        return precision.cast(batch) if self.settings.dtype == "float64" else batch

    # -- bounded -------------------------------------------------------------------------------------------------------
    def dataloader(self, dataset: Any, **options: Any) -> ElasticLoader:
        if self.settings.seed:
            options["seed"] = options.get("seed", 0) + self.settings.seed
        loader: ElasticLoader = super().dataloader(dataset, **options)  # type: ignore[misc]
        read = loader._read
        loader._read = lambda epoch=None: self._bounded(read(epoch=epoch))
        loader._begin_epoch(self._bounded(loader.order))
        return loader

    def _bounded(self, order: Order) -> Bounded:
        values = {f.name: getattr(order, f.name) for f in fields(order)}
        most, size = self.settings.epoch_steps or ENDLESS, order.global_batch_size
        if order.length is not None and not order.sampled and order.steps_per_epoch > most:
            values["length"] = (most - 1) * size + (size if order.drop_last else -(-size // 2))
        return Bounded(**values, last=self.settings.steps)

    def steps(
        self, loader: ElasticLoader, *, epochs: int | None = None, steps: int | None = None, **options: Any
    ) -> Iterator[Any]:
        if steps is not None:
            steps = min(steps, self.settings.steps)
        if self.whole and loader.order.in_micro_batches:
            order = replace(loader.order, micro_batch_size=None, micro_batches=None)
            keyed = loader.randomness is not None
            loader = ElasticLoader(loader.dataset, order, keyed=keyed, collate_fn=loader.collate_fn)
        if (warm_up := options.get("warm_up")) is not None:

            def warmed(batch: Any) -> object:
                self._note_body(batch)
                return warm_up(self._cast(batch))

            options["warm_up"] = warmed
        self.began = self.began or time.monotonic()
        for batch in super().steps(loader, epochs=epochs, steps=steps, **options):  # type: ignore[misc]
            self._note_body(batch)
            yield self._cast(batch)

    def backward(self, loss: torch.Tensor, **options: Any) -> torch.Tensor:
        value: torch.Tensor = super().backward(loss, **options)  # type: ignore[misc]
        self.note_gradients()
        return value

    def note_gradients(self) -> None:
        if self.committed:  # type: ignore[attr-defined]
            self._gradients = record.gradients(self.tracked)  # type: ignore[attr-defined]

    def _note_body(self, batch: Any) -> None:
        body: Any = self.body  # type: ignore[attr-defined]
        part: Slice | None = self.part  # type: ignore[attr-defined]
        if body is None or part is None:
            return
        if part.indices and not body.warm_up:
            self._batches[f"{part.start} to {part.start + len(part.indices) - 1}"] = record.batch(batch)
        self.note_begin(body, record.state(self.tracked))  # type: ignore[attr-defined]

    def note_begin(self, body: Any, state: dict[str, Any]) -> None:
        if body.micro_batch == 0:
            found = variables.of_script(sys._getframe(), self.tracked)  # type: ignore[attr-defined]
            self.recorder.write("begin", step=body.step, warm_up=body.warm_up, entries=state, variables=found)

    def epochs(self, loader: ElasticLoader, epochs: int) -> Iterator[int]:
        for epoch in super().epochs(loader, epochs):  # type: ignore[misc]
            if self.ended:
                return
            yield epoch

    @property
    def whole(self) -> bool:
        """Whether batches are not cut into micro-batches."""
        return self.settings.whole or self.own_loop

    @property
    def ended(self) -> bool:
        """Whether the run's last step is committed."""
        return bool(self.step >= self.settings.steps)  # type: ignore[attr-defined]

    # -- recorded ------------------------------------------------------------------------------------------------------
    def on_commit(self, callback: Callable[[], None]) -> None:
        def counted() -> None:
            self._called += 1
            callback()

        super().on_commit(counted)  # type: ignore[misc]

    def note(self, tracked: Mapping[str, Any], **place: Any) -> None:
        """Record the step that was just committed."""
        called, self._called = self._called, 0
        loss: float | None = self.loss  # type: ignore[attr-defined]
        first: dict[str, Any] = {OWN_LOOP: True} if self.own_loop else {"callbacks of the step": called}
        first, self._batches = {BATCH: self._batches, **first}, {}
        found = {**first, **record.entries(tracked, loss, self._gradients)}
        self.recorder.write("step", step=self.step, entries=found, **place)  # type: ignore[attr-defined]

    def note_end(self, tracked: Mapping[str, Any], error: BaseException | None) -> None:
        """Record the state with which the script leaves the job."""
        step: int = self.step  # type: ignore[attr-defined]
        if error is None and step:
            first = {OWN_LOOP: True} if self.own_loop else {}
            self.recorder.write("end", step=step, entries={**first, **record.entries(tracked, None, {})})
        self.recorder.close()


class WatchedReference(Watched, Reference):
    """The reference in a run."""

    def __init__(self, settings: Settings, recorder: record.Recorder) -> None:
        super().__init__(settings.parts)
        self._state: dict[str, Any] = {}  # as the last loop body has begun
        self._of_each_part: set[str] = set()  # entries that bodies change which are not a step's last
        self.begin(settings, recorder)

    @property
    def is_reference(self) -> bool:
        """For adapters: whether they leave the loop to their framework, which computes no batch in parts."""
        return not self.settings.parts

    @property
    def ended(self) -> bool:
        return super().ended or self._stopped

    def backward(self, loss: torch.Tensor, **options: Any) -> torch.Tensor:
        self._end_in_time()
        return super().backward(loss, **options)

    @property
    def part(self) -> Slice | None:
        """The micro-batch of the loop body that runs."""
        return self._bodies[max(self._body, 0)] if self._bodies else None

    def note_begin(self, body: Any, state: dict[str, Any]) -> None:
        super().note_begin(body, state)
        if body.micro_batch:
            self._of_each_part |= {name for name, value in state.items() if self._state.get(name, value) != value}
        self._state = state

    def computed(self, loss: torch.Tensor) -> None:
        """A framework's own loop has run backward on the mean of a global batch."""
        self._end_in_time()
        self._backwards, self._losses, self._stops = self._backwards + 1, float(loss), self._asked
        self.draws.summed()
        self.note_gradients()

    def note_gradients(self) -> None:
        if self.settings.perturbed and self._last:
            for p in (p for p in self._parameters() if p.grad is not None):
                p.grad = p.grad * (1 + torch.finfo(p.grad.dtype).eps * (2 * (p.grad.detach() > p.detach()) - 1))
        super().note_gradients()

    def _end_in_time(self) -> None:
        limit = self.settings.seconds
        if limit is not None and self.step + 1 >= self.settings.fewest and self.began is not None:
            self._asked |= time.monotonic() - self.began > limit

    def observe(self) -> None:
        norms = {type(m).__name__ for obj in self.tracked.values() if isinstance(obj, nn.Module) for m in _norms(obj)}
        facts = {
            "depends_on_parts": sorted(norms) + ["random numbers in the loop body"] * self.draws.drew,
            "backwards": 0 if self.own_loop else self._backwards,
            "of_each_part": sorted(self._of_each_part),
            "own": [name for name, obj in self.tracked.items() if obj not in self._models and _is_own(obj)],
        }
        self.note(self.tracked, rank=0, world=1, share=[0, 1], facts=facts)

    def __exit__(self, *why: Any) -> None:
        if why[1] is None and self._bodies and self.committed:  # left by break, and the script holds the iterator
            self._commit()
        self.note_end(self.tracked, why[1])


class WatchedJob(Watched, Job):
    """The job in a run."""

    def begin(self, settings: Settings, recorder: record.Recorder) -> None:
        super().begin(settings, recorder)
        self._loop.bodies.after_commit = self._observe
        self._waited = -1
        if settings.held is not None:
            _hold_receivers(settings.held, recorder)

    def backward(self, loss: torch.Tensor, **options: Any) -> torch.Tensor:
        self._pass(position(self.step, in_body=True))
        step, halted = self._loop.step, self.settings.halted
        if halted is not None and step is not None and not step.warm_up and step.done == step.begun:
            _wait_while(halted, self.recorder, "halts")
        return super().backward(loss, **options)

    @property
    def tracked(self) -> dict[str, Any]:
        return self._tracked

    @property
    def part(self) -> Slice | None:
        """The micro-batch of the loop body that runs; None: this rank has no state of its own."""
        step = self._loop.step
        holds = step is not None and not step.share.learner and not self._world.receiving
        return step.parts[max(step.begun - 1, 0)] if step is not None and holds else None

    def _observe(self, step: Step) -> None:
        if not step.incomplete:
            place = {"rank": step.place.rank, "world": step.place.world_size, "share": step.share[:2]}
            self.note(self._tracked, **place, generation=step.place.generation)
        self._pass(position(self.step, in_body=False))

    def _pass(self, here: int) -> None:
        """Wait until the gate permits ranks to pass this position."""
        gate = self.settings.gate
        if gate is None or (self._loop.step is not None and self._loop.step.warm_up):
            return
        while here > int(gate.read_text()):
            if here != self._waited:
                self._waited = here
                self.recorder.write("waits", at=here)
            time.sleep(POLL_SECONDS)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:  # the script may hold the iterator of a loop that it has left by break
            self._loop.bodies.conclude()
        self.note_end(self._tracked, error)
        super().__exit__(kind, error, trace)


def _is_own(obj: Any) -> bool:
    """Whether it is not one of torch's optimizers, schedulers and scalers, whose methods elastrain gates."""
    modules = (kind.__module__ for kind in type(obj).__mro__ if not kind.__module__.startswith("elastrain_verify."))
    return isinstance(obj, nn.Module) or not next(modules).startswith("torch.")


def _norms(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that normalise over the batch."""
    return (m for m in model.modules() if isinstance(m, BatchNorm) and m.training)


def _wait_while(file: Path, recorder: record.Recorder, kind: str) -> None:
    """This process waits while ``file`` exists, and records that."""
    if file.exists():
        recorder.write(kind)
    while file.exists():
        time.sleep(POLL_SECONDS)


def _hold_receivers(held: Path, recorder: record.Recorder) -> None:
    """This process waits before it receives state while the file ``held`` exists."""
    original = Handover.receive

    def receive(self: Handover, *args: Any, **options: Any) -> None:
        _wait_while(held, recorder, "receives")
        original(self, *args, **options)

    Handover.receive = receive  # type: ignore[method-assign]
