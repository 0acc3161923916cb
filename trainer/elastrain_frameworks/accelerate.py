"""``accelerate`` in a loop of the script's own, rescaled in process: needs ``elastrain[accelerate]``.

::

    with elastrain.join() as job:
        accelerator = ElasticAccelerator(job, gradient_accumulation_steps=4)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        for epoch in range(3):
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = ...
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()

The script sees one process (``num_processes`` is 1), and the job computes that process's optimizer steps on all ranks:
a step is ``batch_size * gradient_accumulation_steps`` samples at any number of ranks. The first DataLoader that is
prepared is that of training. Every rank reads all samples of the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, send_to_device
from torch.utils.data import DataLoader

from elastrain.api import names
from elastrain.data.loader import ElasticLoader
from elastrain.elastic.contract import Call
from elastrain.elastic.job import Job
from elastrain.elastic.strategies.strategy import ElasticModule
from elastrain_frameworks import events
from elastrain_frameworks.arrives import track_next
from elastrain_frameworks.files import FilesOfScript, Logs, new_id
from elastrain_frameworks.held import track_prepared
from elastrain_frameworks.launcher import single_process
from elastrain_frameworks.own_loop import HasOwnLoop
from elastrain_frameworks.refusals import Refusal, one_part, refuse, refuse_chosen_batch, refused
from elastrain_frameworks.training_data import Epochs, in_order_of

_DEVICE = "ACCELERATE_TORCH_DEVICE"
"""By this variable accelerate takes the device that it is given."""
_REPLICAS = "ranks are replicas (data parallel) here"
_REFUSALS = (
    *(
        Refusal(plugin, _REPLICAS)
        for plugin in (
            "deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "torch_tp_plugin",
            "parallelism_config",
        )
    ),
    Refusal("dispatch_batches", "each rank loads its part of a step"),
)  # fmt: skip


class Trackers(Logs):
    """All trackers of an Accelerator. They exist on rank 0 only."""

    def __init__(self, accelerator: Any, project: str, config: Any = None, init_kwargs: Any = None) -> None:
        """As of ``init_trackers``."""
        self.run = new_id()
        self._accelerator, self._arguments = accelerator, (project, config)
        self._options: dict[str, Any] = {**(init_kwargs or {})}

    def write(self, row: dict[str, Any], step: int | None, options: dict[str, Any]) -> None:
        Accelerator.log(self._accelerator, row, step, options)

    def go_on(self) -> None:
        """Services that know the run of an id resume it; TensorBoard leaves out what is behind the settled rows."""
        options = {"wandb": {"id": self.run, "resume": "allow"}, "tensorboard": {"purge_step": self.settled[1] + 1}}
        merged = {name: {**given, **self._options.get(name, {})} for name, given in options.items()}
        self._accelerator.show_place()
        events.come_last_in(Path(self._accelerator.logging_dir or "", self._arguments[0]))
        Accelerator.init_trackers(self._accelerator, *self._arguments, {**self._options, **merged})

    def let_go(self) -> None:
        self._accelerator.state.process_index = PartialState().process_index = 0  # their methods are those of rank 0
        for tracker in self._accelerator.trackers:
            tracker.finish()
        self._accelerator.trackers = []
        self._accelerator.show_place()


def _on(place: str) -> Any:
    """A decorator of the Accelerator, which would call the function in each process that sees no other one. ``place``:
    the attribute that says whether this process calls it."""

    def decorator(self: Any, function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
        """The function is called once, as in one process."""
        if function is None:
            return partial(decorator, self)

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            return function(*args, **options) if getattr(self, place) else None

        return call

    return decorator


class OfJob(Accelerator):
    """What every Accelerator on an elastic job has: that of a script, and that of transformers' Trainer."""

    job: Job
    on_main_process = on_last_process = on_process = _on("is_main_process")
    on_local_main_process = on_local_process = _on("is_local_main_process")

    def wrap_options(self) -> dict[str, Any]:
        """Of :meth:`elastrain.Job.wrap`: ``DistributedDataParallelKwargs``."""
        return self.ddp_handler.to_kwargs() if self.ddp_handler is not None else {}

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """The model in the job's wrapper, in place of DDP."""
        if isinstance(model, ElasticModule):
            return model
        model = super().prepare_model(model, device_placement, evaluation_mode)
        if evaluation_mode or not any(p.requires_grad for p in model.parameters()):
            return model
        return self.job.wrap(model, **self.wrap_options())

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> torch.optim.Optimizer:
        """Also tracks it: the first as ``optimizer``, the second as ``optimizer1``, and so on."""
        if not getattr(optimizer, "_is_accelerate_prepared", False):
            track_next(self.job, "optimizer", len(self._optimizers), optimizer)
        return super().prepare_optimizer(optimizer, device_placement)

    def unwrap_model(
        self, model: torch.nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> torch.nn.Module:
        """The script's own model."""
        inner = model.module if isinstance(model, ElasticModule) else model
        return super().unwrap_model(inner, keep_fp32_wrapper, keep_torch_compile)

    def gather(self, tensor: Any) -> Any:
        """``tensor`` itself, in a loop over evaluation data, of which every rank has all samples. Raises
        ``RuntimeError`` elsewhere in training."""
        self.check_whole("gather", sys._getframe(1))
        return super().gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As :meth:`gather`."""
        self.check_whole("gather_for_metrics", sys._getframe(1))
        return super().gather_for_metrics(input_data, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """As :meth:`gather`."""
        self.check_whole("reduce", sys._getframe(1))
        return super().reduce(tensor, reduction, scale)

    def check_whole(self, name: str, caller: FrameType) -> None:
        """Raises ``RuntimeError`` if a value may be that of one rank's part of a batch."""
        if not self.gradient_state.in_dataloader:
            raise one_part(f"accelerator.{name}()", "in a loop over a prepared evaluation DataLoader")


class ElasticAccelerator(HasOwnLoop, OfJob):
    """``accelerate.Accelerator`` on an elastic job. What this class does not name is accelerate's own."""

    own_loop = "accelerate"

    def __init__(self, job: Job, **options: Any) -> None:
        """``options``: those of the Accelerator.

        Raises ``ValueError`` with the name of an option that is meaningless in an elastic job.
        """
        self.job = job
        refuse_chosen_batch(job, "ElasticAccelerator(job)")
        refuse(options, _REFUSALS)
        configured = os.environ.get(_DEVICE)
        os.environ[_DEVICE] = "cpu" if options.get("cpu") else str(job.device)
        try:
            with single_process():
                super().__init__(**options)
        finally:
            del os.environ[_DEVICE]
            if configured is not None:
                os.environ[_DEVICE] = configured
        if self.distributed_type != DistributedType.NO:
            raise ValueError(
                f"accelerate is configured for {self.distributed_type.value}: not in an elastic job; leave "
                "'accelerate launch' and its ACCELERATE_USE_* variables out: the agent starts the ranks"
            )
        refuse({"dispatch_batches": self.dispatch_batches}, _REFUSALS)
        if self.scaler is not None:
            job.track(scaler=self.scaler)
        PartialState().local_process_index = int(os.environ.get(names.ENV_LOCAL_RANK, "0"))
        self._training: Epochs | None = None
        self._stepped, self._others = False, 0
        self._trackers: Trackers | None = None
        self._files = FilesOfScript(job)

    # -- preparation ---------------------------------------------------------------------------------------------------
    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """As the Accelerator's; also takes loaders of :meth:`elastrain.Job.dataloader`, for data that needs them."""
        ready = (self._adopt(arg) if isinstance(arg, ElasticLoader) else arg for arg in args)
        return super().prepare(*ready, device_placement=device_placement)

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """Also tracks one that does not train."""
        before = len(self._models)
        prepared = super().prepare_model(model, device_placement, evaluation_mode)
        if len(self._models) > before and not isinstance(prepared, ElasticModule):
            track_prepared(self.job, self._others, prepared)
            self._others += 1
        return prepared

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> torch.optim.Optimizer:
        """Also notes its steps."""
        if not getattr(optimizer, "_is_accelerate_prepared", False):
            optimizer.register_step_post_hook(self._note_step)
        return super().prepare_optimizer(optimizer, device_placement)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Also tracks it: the first as ``scheduler``, the second as ``scheduler1``, and so on."""
        if not getattr(scheduler, "_is_accelerate_prepared", False):
            track_next(self.job, "scheduler", len(self._schedulers), scheduler)
        return super().prepare_scheduler(scheduler)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Track the objects: joiners and the job's checkpoints receive their state."""
        first = len(self._custom_objects)
        super().register_for_checkpointing(*objects)
        track_next(self.job, "object", first, *objects)

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        """The first DataLoader has the job's order; every rank reads all samples of the others.

        Raises ``ValueError`` as :func:`elastrain_frameworks.training_data.in_order_of`.
        """
        if isinstance(data_loader, Epochs):
            return data_loader
        if self._training is not None:
            return super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
        return self._adopt(self._elastic(data_loader), data_loader, device_placement)

    def _adopt(
        self, loader: ElasticLoader, source: DataLoader[Any] | None = None, device_placement: bool | None = None
    ) -> Epochs:
        if self._training is not None:
            raise ValueError("accelerator.prepare(): the training data is prepared already; a job has one order of it")
        order, accumulated = loader.order, self.gradient_accumulation_steps if source is not None else 1
        batches = order.steps_per_epoch * accumulated if order.length is not None else None
        if source is not None and order.length is not None and not order.drop_last:
            batches = len(source)
        places = self.device_placement if device_placement is None else device_placement
        place = partial(send_to_device, device=self.device) if places else None
        self._training = Epochs(loader, partial(self.steps, loader), batches=batches, place=place)
        return self._training

    def _elastic(self, source: DataLoader[Any]) -> ElasticLoader:
        """The DataLoader in the job's order: batches of its size, as many to a step as accelerate accumulates."""
        seed = self.dataloader_config.data_seed or 0
        total = (getattr(source, "batch_size", None) or 0) * self.gradient_accumulation_steps
        return in_order_of(self.job, source, "accelerator.prepare()", global_batch_size=total, seed=seed)

    # -- the loop ------------------------------------------------------------------------------------------------------
    def steps(self, loader: ElasticLoader, epochs: int) -> Iterator[Any]:
        """:meth:`elastrain.Job.steps`, with accelerate's view of this process.

        Raises ``RuntimeError`` if the loop body has left out the optimizer's step in a step that counts.
        """
        for batch in self.job.steps(loader, epochs=epochs):  # no variable: it ends at once if the script breaks out
            self.show_place()
            self._stepped = False
            yield batch
            if self.job.committed and not (self._stepped or self.optimizer_step_was_skipped):
                raise RuntimeError(
                    "the loop body has not called optimizer.step() of a prepared optimizer: call it for each batch, "
                    "and accumulate by ElasticAccelerator(job, gradient_accumulation_steps=...)"
                )
        self.show_place()

    def _note_step(self, *_: Any) -> None:
        self._stepped = True

    def show_place(self) -> None:
        """Set the rank by which accelerate, its loggers and decorators choose the main process."""
        self.state.process_index = PartialState().process_index = self.job.rank

    @contextmanager
    def accumulate(self, *models: torch.nn.Module) -> Iterator[None]:
        """Nothing is left to do: the job sums the gradients with a step's last micro-batch."""
        yield

    @property
    def sync_gradients(self) -> bool:
        """Whether the optimizer's step acts in this execution of the loop body. Raises ``RuntimeError`` before
        :meth:`backward`: it is not known yet."""
        return self.job.acts(Call.UPDATE, "accelerator.sync_gradients")

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        raise AttributeError("accelerator.sync_gradients: the job determines it")

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """``options`` are those of :meth:`elastrain.Job.backward`."""
        self._files.before_backward()
        self.job.backward(self.scaler.scale(loss) if self.scaler is not None else loss, **options)
        self._files.after_backward()

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor | None:
        """The norm of the gradient over the global batch; None before a step's last micro-batch."""
        if not self.job.acts(Call.CLIP, "accelerator.clip_grad_norm_()"):
            return None
        return super().clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Does nothing before a step's last micro-batch."""
        if self.job.acts(Call.CLIP, "accelerator.clip_grad_value_()"):
            super().clip_grad_value_(parameters, clip_value)

    # -- across the ranks ----------------------------------------------------------------------------------------------
    def wait_for_everyone(self) -> None:
        """Returns at once: all ranks leave a loop together. Raises ``RuntimeError`` in a loop body."""
        if self.job.body is not None:
            raise RuntimeError("accelerator.wait_for_everyone(): not in a loop body; ranks meet at the end of a loop")

    # -- records -------------------------------------------------------------------------------------------------------
    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Before the loop. Rank 0 opens them behind its first step, and a new one goes on with the same run."""
        self._trackers = Trackers(self, *args, **kwargs)
        self._files.log_with(self._trackers)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, Any] | None = None) -> None:
        """On rank 0, and in a loop body only if its step counts."""
        if self._files.acts("accelerator.log()") and self._trackers is not None:
            self._trackers.add(values, step, log_kwargs or {})

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """All ranks call it, behind the backward of a step or between loops. Rank 0 writes; a new one, if it is lost
        before it has ended."""
        self._files.save("accelerator.save()", super().save, obj, f, safe_serialization)

    def save_model(self, model: torch.nn.Module, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As :meth:`save`."""
        write = partial(super().save_model, model, save_directory, *args, **kwargs)
        self._files.save("accelerator.save_model()", write)

    save_state = refused("accelerator.save_state()", "spec.checkpoint saves the job's state")
    load_state = refused("accelerator.load_state()", "the job resumes from spec.checkpoint")
    skip_first_batches = refused("accelerator.skip_first_batches()", "a loop over the loader begins at the job's step")
    set_trigger = refused("accelerator.set_trigger()", "call job.stop()")
    check_trigger = refused("accelerator.check_trigger()", "after job.stop() the loop ends on all ranks")
