"""The seams at which transformers' own training loop (``Trainer._inner_training_loop``) meets an elastic job.

The loop runs unmodified. To it an iteration is one committed step of the job: warm-ups, micro-batches and discarded
executions end within its call of ``training_step``, and the iterator of :meth:`elastrain.Job.steps` is advanced only
there and where the loop fetches its next batch, which commits the step before. So all that the loop does behind
``training_step`` (clipping, optimizer, schedule, counters, callbacks, log, evaluation, save) belongs to the committed
body of the step, and reaches joiners as a part of it.

A *ghost* is an iteration for a step that this rank has not committed: its peers have, and it has their state. The loop
counts it and calls its events; optimizer and schedule stay.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import transformers
from accelerate import PartialState
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset
from transformers import Trainer
from transformers.trainer_pt_utils import find_batch_size

from elastrain.api import names
from elastrain.data.loader import ElasticLoader
from elastrain.data.rng import Kept
from elastrain.elastic.contract import Call
from elastrain.elastic.job import Job
from elastrain_frameworks.attributes import plain_attributes, put_back
from elastrain_frameworks.files import Files
from elastrain_frameworks.held import Held, Received
from elastrain_frameworks.huggingface.accelerator import JobsAccelerator
from elastrain_frameworks.huggingface.board import boards_of
from elastrain_frameworks.huggingface.numbers import Numbers
from elastrain_frameworks.huggingface.state import Carried, held_by
from elastrain_frameworks.stops import say, watch
from elastrain_frameworks.training_data import KEPT, in_order_of

SEAMS = (
    "create_accelerator_and_postprocess", "is_world_process_zero", "is_local_process_zero",
    "get_total_train_batch_size", "_inner_training_loop", "get_train_dataloader", "_init_training_state",
    "_prepare_for_training", "_load_rng_state", "training_step", "floating_point_ops", "_evaluate", "evaluation_loop",
    "_save_checkpoint", "_finalize_training",
)  # fmt: skip
"""Methods of the Trainer that the job is at."""
_REFUSED = {"should_epoch_stop": "the order of the data has whole epochs; end training by should_training_stop"}
_OVER = object()
"""In place of a batch: the job has no further body."""


class _Bodies(Dataset[Any]):
    """For the loop's DataLoader: each of its batches is one body of the job. ``len``: of the samples."""

    def __init__(self, dataset: Any, fetch: Callable[[int], Any]) -> None:
        self.dataset, self.__getitems__ = dataset, lambda numbers: fetch(*numbers)

    def __len__(self) -> int:
        return len(self.dataset)


def check_seams() -> None:
    """Raises ``RuntimeError`` naming the seams that this transformers does not have."""
    if missing := [name for name in SEAMS if not hasattr(Trainer, name)]:
        raise RuntimeError(
            f"ElasticTrainer: transformers {transformers.__version__} has no Trainer.{', Trainer.'.join(missing)}, "
            "where the job meets its loop: install transformers 5.24, which is tested"
        )


def loader_of(trainer: Any, source: Any) -> ElasticLoader:
    """The data of ``source``, which ``trainer.get_train_dataloader()`` has returned, in the order of the job.

    Raises ``ValueError`` as of :func:`elastrain_frameworks.training_data.in_order_of`.
    """
    args = trainer.args
    if isinstance(source, DataLoader) and source.batch_size is None:  # accelerate has prepared it
        options = {name: getattr(source, name) for name in (*KEPT, "prefetch_factor")}
        cut = source.batch_sampler
        if isinstance(source.dataset, IterableDataset):
            source = DataLoader(source.dataset, args.train_batch_size, **options)
        elif type(cut) is BatchSampler:  # with accelerate's sampler of the Trainer's own order
            sampled = {"batch_size": cut.batch_size, "sampler": cut.sampler, "drop_last": cut.drop_last}
            source = DataLoader(source.dataset, **sampled, **options)
    if args.train_sampling_strategy == "group_by_length" and hasattr(getattr(source, "sampler", None), "batch_size"):
        source.sampler.batch_size = args.global_batch_size  # samples of similar length meet in a global batch
    seed = args.seed if args.data_seed is None else args.data_seed
    what = "get_train_dataloader()"
    return in_order_of(trainer.job, source, what, global_batch_size=args.global_batch_size, seed=seed)


@dataclass
class _Run:
    """What the seams know while the loop runs. (No attributes of the Trainer: those travel with its state.)"""

    loader: ElasticLoader
    carried: Carried
    files: Files
    kept: Kept = field(default_factory=Kept)
    """The random streams of a body that has begun before the loop asks for it."""
    bodies: Any = None
    """The iterator of :meth:`elastrain.Job.steps`."""
    prepared: Any = None
    """The wrapped model."""
    held: Held | None = None
    """None before the job is entered."""
    ahead: Any = None
    """The batch of a body that has begun, and for which the loop has not asked."""
    inputs: Any = field(default_factory=dict)
    """Those of the body that runs."""


class Seams(Trainer):
    """The first base class of an elastic Trainer's object: before the methods that its own class overrides."""

    job: Job
    accelerator: JobsAccelerator
    _run: _Run | None = None
    """While the loop runs."""

    # -- set-up --------------------------------------------------------------------------------------------------------
    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__, self.accelerator.job = JobsAccelerator, self.job
        self.accelerator.numbers = Numbers(self)
        # Of DDP, if the arguments give them: the Trainer's own default is for models that leave parameters out.
        given = {name: getattr(self.args, f"ddp_{name}") for name in ("find_unused_parameters", "bucket_cap_mb")}
        self.accelerator.options = {name: value for name, value in given.items() if value}
        PartialState().local_process_index = int(os.environ.get(names.ENV_LOCAL_RANK, "0"))

    def is_world_process_zero(self) -> bool:
        """Whether this process has rank 0 of the present generation."""
        return self.job.rank == 0

    def is_local_process_zero(self) -> bool:
        """Whether this process has local rank 0."""
        return os.environ.get(names.ENV_LOCAL_RANK, "0") == "0"

    def get_total_train_batch_size(self, args: Any) -> int:
        return int(args.global_batch_size)

    def _inner_training_loop(self, *args: Any, **options: Any) -> Any:
        """Transformers' loop, entered as if it resumed: at the step of the job."""
        options["resume_from_checkpoint"] = "the job"
        watch(self.control, "should_training_stop", _REFUSED)
        files = Files(self.job, boards_of(self))
        self._run = _Run(loader_of(self, super().get_train_dataloader()), Carried(self), files)
        try:
            return super()._inner_training_loop(*args, **options)
        finally:
            self._run = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """In the loop: an item for each batch that it counts; a step has ``gradient_accumulation_steps`` of them."""
        if self._run is None:
            return super().get_train_dataloader()
        loader = self._run.loader
        accumulated = self.args.gradient_accumulation_steps
        if loader.order.length is None:
            numbers: Any = ([number] for number in itertools.count())
        else:
            whole, size = loader.order.length // loader.order.global_batch_size, self.args.per_device_train_batch_size
            rest = 0 if loader.order.drop_last else loader.order.length - whole * loader.order.global_batch_size
            items = whole * accumulated + -(-rest // size) if accumulated > 1 else len(loader)
            numbers = BatchSampler(range(items), 1, drop_last=False)
        bodies = _Bodies(loader.dataset, self._fetch)
        return DataLoader(bodies, batch_sampler=numbers, collate_fn=_as_it_is, generator=torch.Generator())

    def _init_training_state(self, max_steps: int, per_epoch: int, epochs: int, _: Any, trial: Any) -> tuple[int, int]:
        """Enter the job before the loop asks where it begins: wrap, track, warm up, receive the state."""
        run = self._at
        super()._init_training_state(max_steps, per_epoch, epochs, None, trial)
        run.prepared = super()._prepare_for_training(max_steps, None, None)[0]
        run.held = held_by(self, run.prepared)
        self.job.track(lr_scheduler=self.lr_scheduler, trainer=run.carried, files=run.files, **run.held.tracked)
        if self.accelerator.scaler is not None:
            self.job.track(scaler=self.accelerator.scaler)
        run.bodies = self.job.steps(run.loader, steps=max_steps, warm_up=self._warm_up)
        entered = next(run.bodies, _OVER) is not _OVER
        run.carried.apply(keep=self.job.step > 0)  # and again when the loop has set its counters to 0
        self._arrive()
        if not entered or self.job.step >= max_steps:
            return epochs, 0
        epoch, step = divmod(self.job.step, per_epoch)
        return epoch, step * self.args.gradient_accumulation_steps

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, _: Any) -> tuple[Any, Any]:
        self.callback_handler.train_dataloader = train_dataloader
        return self._at.prepared, train_dataloader

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Random numbers go by the step."""

    # -- a step --------------------------------------------------------------------------------------------------------
    def _fetch(self, number: int) -> Any:
        """The loop asks for a batch: with a step's first the step before is committed, and the next one begins."""
        run = self._at
        if number % self.args.gradient_accumulation_steps:
            return run.inputs  # in place of the further batches of the step, of which the job makes micro-batches
        run.inputs = {}
        if run.held is not None and self.state.global_step:
            run.held.check()
        run.files.step_ends()
        run.files.flush()
        if run.ahead is None:
            self._begin(next(run.bodies, _OVER))
        if self.job.step > self.state.global_step:
            self._show_place()
            self._silence(silent=True)
            self._set_ghost(True)
            return {}
        if run.ahead is _OVER:  # all steps are done, or job.stop() has ended the job before the Trainer's last step
            self.control.should_training_stop = True
            raise StopIteration
        run.carried.apply()
        run.carried.hold()
        self._arrive()
        self._set_ghost(False)
        self._silence(silent=False)
        run.inputs, run.ahead = run.ahead, None
        run.kept.__exit__()
        return run.inputs

    def _begin(self, inputs: Any) -> None:
        """A body has begun, and code of the step before may follow, which must not change its random numbers."""
        self._at.ahead = inputs
        if inputs is not _OVER:
            self._at.kept.__enter__()

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The loop's: repeats that of the Trainer's class until a step is committed, or received."""
        if self._run is None:
            return super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.ghost or not self.accelerator.sync_gradients:  # the call for a step's last batch makes it
            self._set_ghost(self.accelerator.ghost)
            return torch.zeros((), device=self.args.device)
        execution, before = self._execution(), plain_attributes(self)
        self.accelerator.numbers.begin()
        while True:
            returned = self._run_body(model, inputs)
            if self.job.acts(Call.UPDATE, "training_step()"):
                return self._counts(returned)
            model.zero_grad()
            inputs = next(self._at.bodies, _OVER)
            if self._execution() == execution:
                continue
            put_back(self, before)
            if self.job.step > self.state.global_step:  # its sums have arrived at other ranks: their state has come
                self._begin(inputs)
                self._set_ghost(True)
                self._arrive(ghost=self.job.step == self.state.global_step + 1)
                self._keep_received()
                return self.accelerator.given
            execution = self._execution()
            self.accelerator.numbers.begin()
            self._arrive()

    def _counts(self, returned: torch.Tensor) -> torch.Tensor:
        """The step is committed. Returns the loss of its global batch in place of that of its last backward."""
        carried = self._at.carried
        carried.apply()  # the last part of a large state may have come with the gradients
        carried.release()
        self.accelerator.numbers.counts()
        self._arrive()
        if self.job.committed:
            self._at.files.committed()
        self._silence(silent=not self.job.committed)  # until it has, events and evaluations would see half of it
        whole = self.accelerator.whole.to(self.args.device)
        return whole if float(returned) == float(self.accelerator.given) else returned

    def _warm_up(self, inputs: Any) -> None:
        before = plain_attributes(self)
        self.accelerator.numbers.begin()
        self._run_body(self._at.prepared, inputs)
        self._at.prepared.zero_grad()
        put_back(self, before)
        assert self._at.held is not None
        self._at.held.say_what_is_taken()

    def _run_body(self, model: Any, inputs: Any) -> torch.Tensor:
        tokens = self._get_num_items_in_batch([inputs], self.args.device)
        self.accelerator.samples = find_batch_size(inputs) or 0
        self.accelerator.tokens, self.current_gradient_accumulation_steps = tokens, 1
        return super().training_step(model, inputs, None if tokens is None else tokens.clamp(min=1))

    @property
    def _at(self) -> _Run:
        assert self._run is not None
        return self._run

    def _execution(self) -> int | None:
        return None if self.job.body is None else self.job.body.execution

    def _set_ghost(self, ghost: bool) -> None:
        self.accelerator.ghost = self.optimizer._is_overflow = ghost  # schedules do not step either
        if ghost:
            self.accelerator.gradient_state._set_sync_gradients(False)  # nor does the optimizer

    def _silence(self, *, silent: bool) -> None:
        """No events, and so no requests to log, evaluate or save."""
        if silent:
            self.callback_handler.call_event = _no_event
        else:
            self.callback_handler.__dict__.pop("call_event", None)

    def _keep_received(self) -> None:
        """The events of a step follow that has come with a peer's state."""
        assert self._at.held is not None
        handler = self.callback_handler
        received = Received({"model": self.model, **self._at.held.tracked}, self.optimizer)

        def call_event(*args: Any, **options: Any) -> Any:
            control = type(handler).call_event(handler, *args, **options)
            received.put_back()
            return control

        handler.call_event = call_event

    def _show_place(self) -> None:
        """Set the rank by which transformers, accelerate and callbacks choose the main process."""
        PartialState().process_index = self.accelerator.state.process_index = self.job.rank
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.job.rank == 0

    def _arrive(self, *, ghost: bool = False) -> None:
        """This process is in a generation, perhaps with a peer's state, and perhaps as its new rank 0. ``ghost``: of
        the one step that this rank has not committed, whose events follow."""
        files = self._at.files
        files.apply(ghost=ghost)
        if ghost:
            files.committed()
        self._show_place()
        files.follow()

    def floating_point_ops(self, inputs: Any) -> int:
        """0 in the loop, whose inputs are one micro-batch of one rank."""
        return 0 if self._run is not None else int(super().floating_point_ops(inputs))

    # -- evaluation and files ------------------------------------------------------------------------------------------
    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        if skip_scheduler and self.job.step:  # eval_on_start of a joiner
            return {}
        with Kept():
            metrics: dict[str, float] = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        return metrics

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        self.accelerator.evaluates = True
        try:
            return super().evaluation_loop(*args, **options)
        finally:
            self.accelerator.evaluates = False

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Rank 0 writes; a new one, if it is lost before it has ended."""
        if self._run is None:
            super()._save_checkpoint(model, trial)
            return
        if self.state.best_global_step == self.state.global_step:  # whether or not rank 0 has written it by now
            folder = f"checkpoint-{self.state.best_global_step}"
            self.state.best_model_checkpoint = os.path.join(self._get_output_dir(trial), folder)  # noqa: PTH118
        self._run.files.call(partial(super()._save_checkpoint, model, trial))

    def _finalize_training(self, *args: Any) -> Any:
        """All ranks have committed the last step: what rank 0 has saved can be read."""
        run = self._at
        if self.callback_handler.call_event is not _no_event:
            self._silence(silent=False)
        run.files.step_ends()
        run.files.flush()
        if self.state.global_step < self.state.max_steps and self.job.body is not None:
            say(self.control, self.state.global_step)
            if not self.accelerator.ghost:  # a callback has ended training: on all ranks, at the same step
                self.job.commit(run.bodies)
            run.bodies.close()
        if next(run.bodies, _OVER) is not _OVER:
            raise RuntimeError("the Trainer's loop has ended before the job's last step")
        run.carried.apply()
        self._arrive()
        self.job.all_reduce(self.job.step, "max")
        run.files.end()
        return super()._finalize_training(*args)


def _as_it_is(batch: Any) -> Any:
    return batch


def _no_event(event: str, args: Any, state: Any, control: Any, **_: Any) -> Any:
    return control
