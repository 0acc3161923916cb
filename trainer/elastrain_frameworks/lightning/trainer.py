"""Lightning's ``Trainer`` on an elastic job, rescaled in process: needs ``elastrain[lightning]``.

::

    with elastrain.join() as job:
        trainer = Trainer(max_epochs=3, strategy=ElasticTrainerStrategy(job, global_batch_size=64), devices=1)
        trainer.fit(module, datamodule)

Lightning's loop stays the one that runs: epochs, validation, callbacks, loggers, ``global_step``. To it a batch is one
committed step of the job. The strategy repeats the closure (``training_step``, ``backward``) within the strategy's
``optimizer_step`` for all that Lightning must not count: the warm-up, micro-batches, and executions of a step that a
loss has discarded. The generator of :meth:`elastrain.Job.steps` is advanced with the next batch only, so that
validation and callbacks after a batch belong to the step that it has committed.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.connectors.logger_connector import result as results
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from elastrain.data.loader import ElasticLoader
from elastrain.data.rng import Kept
from elastrain.elastic.contract import Call
from elastrain.elastic.job import Job
from elastrain_frameworks.arrives import track_next
from elastrain_frameworks.held import Held, Received
from elastrain_frameworks.lightning.fabric import RankOfJob
from elastrain_frameworks.lightning.files import FilesOfTrainer
from elastrain_frameworks.lightning.numbers import Numbers
from elastrain_frameworks.lightning.options import check, total_steps
from elastrain_frameworks.lightning.progress import Callbacks, follow, held_by
from elastrain_frameworks.lightning.stand_ins import Applied, Schedule, Steps
from elastrain_frameworks.own_loop import HasOwnLoop
from elastrain_frameworks.refusals import one_part, refuse_chosen_batch
from elastrain_frameworks.stops import say, watch
from elastrain_frameworks.training_data import in_order_of

_END = object()
"""In place of a batch: the job has no further step."""
_MISSED = "the others have committed steps without this rank, which Lightning's loop cannot skip; it starts anew"
_STOPPED = "Lightning's loop has ended before the job's last step"


class ElasticTrainerStrategy(HasOwnLoop, RankOfJob, SingleDeviceStrategy):
    """One rank of ``job`` on this process's device, for ``lightning.pytorch.Trainer``."""

    own_loop = "lightning"

    def __init__(self, job: Job, *, global_batch_size: int, seed: int = 0, **options: Any) -> None:
        """``global_batch_size``: samples of one optimizer step over all ranks, at any number of ranks; the
        DataLoader's ``batch_size`` is the most that a rank computes at a time. ``seed``: of the order of the data.
        ``options``: ``accelerator``, ``checkpoint_io``, ``precision_plugin`` of Lightning's strategies."""
        refuse_chosen_batch(job, "ElasticTrainerStrategy(job)")
        super().__init__(device=job.device, **options)
        self._job, self._global_batch_size, self._seed = job, global_batch_size, seed
        self._trainer: Trainer | None = None
        self._data: Steps | None = None
        self._steps: Any = None
        self._callbacks: Callbacks | None = None
        self._files: FilesOfTrainer | None = None
        """Of a ``fit``; also afterwards."""
        self._numbers: Numbers | None = None
        self._joined = False
        """Whether this process holds the whole state: in steps before, Lightning's loop sees nothing."""
        self._begun: Any = None
        """The batch of a loop body that has begun, but that Lightning has not asked for."""
        self._kept = Kept()
        """The random streams of that body."""
        self._replaced: Any = None
        """The batch for ``training_step`` in place of the one that Lightning has fetched."""
        self.received: Received | None = None
        """Of the step that Lightning is at, if it arrived with a peer's state."""
        self._held: Held | None = None

    @property
    def world_size(self) -> int:
        """1: to Lightning this is a single process, whose steps the job computes on all ranks."""
        return 1

    @world_size.setter
    def world_size(self, size: int) -> None:
        """Ignored, as a :attr:`global_rank`."""

    # -- preparation ---------------------------------------------------------------------------------------------------
    def setup_environment(self) -> None:
        """No logger opens a file before this process is in a generation."""
        super().setup_environment()
        assert self.lightning_module is not None
        if (trainer := self.lightning_module.trainer).state.fn == TrainerFn.FITTING:
            self._files = FilesOfTrainer(self._job, trainer)
        elif self._files is not None:
            self._follow()

    def setup(self, trainer: Trainer) -> None:
        """Wrap the module, and track optimizer, schedules, scaler, callbacks, files and sums.

        Raises ``ValueError`` naming what has no meaning in an elastic job.
        """
        self._trainer = trainer
        if trainer.state.fn == TrainerFn.FITTING:
            check(trainer)
            watch(trainer, "should_stop")
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if len(self.optimizers) != 1 or isinstance(self.optimizers[0], torch.optim.LBFGS):
            raise ValueError("configure_optimizers(): one optimizer, not LBFGS, under the Trainer; use Fabric")
        if any(c.reduce_on_plateau for c in self.lr_scheduler_configs):
            raise ValueError("ReduceLROnPlateau: each rank would follow its own metric; step it on job.loss")
        assert self._files is not None
        self._files.see_folders(trainer)
        self._numbers = Numbers(self._job, trainer)
        self._job.track(files=self._files, numbers=self._numbers)
        self._track(trainer)
        for config in self.lr_scheduler_configs:
            config.scheduler = Schedule(config.scheduler, self)

    def _track(self, trainer: Trainer) -> None:
        self._callbacks = Callbacks(trainer)
        self._job.track(optimizer=self.optimizers[0], callbacks=self._callbacks)
        scaler = getattr(self.precision_plugin, "scaler", None)
        if scaler is not None:
            self._job.track(scaler=scaler)
        track_next(self._job, "scheduler", 0, *(config.scheduler for config in self.lr_scheduler_configs))

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        assert self._trainer is not None
        return self._job.wrap(model) if self._trainer.state.fn == TrainerFn.FITTING else model

    def process_dataloader(self, dataloader: Any) -> Any:
        """The training data in the job's order. Every rank reads all of the other data.

        Raises ``ValueError`` as :func:`elastrain_frameworks.training_data.in_order_of`.
        """
        trainer = self._trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            return dataloader
        if self._data is not None:
            raise ValueError("train_dataloader: one, not several: a job has one order of data")
        if isinstance(dataloader, Steps):
            self._data = dataloader
        else:
            size = self._global_batch_size
            loader = in_order_of(self._job, dataloader, "train_dataloader", global_batch_size=size, seed=self._seed)
            self._data = Steps(self, loader)
        return self._data

    def dataloader(self, loader: ElasticLoader) -> Any:
        """For ``train_dataloader``: a loader of :meth:`elastrain.Job.dataloader`, for data that needs its options."""
        return Steps(self, loader)

    # -- the loop ------------------------------------------------------------------------------------------------------
    def _warm_up(self, batch: Any) -> None:
        assert self._trainer is not None and self._numbers is not None
        loop, batch = self._trainer.fit_loop.epoch_loop, self._to_device(batch)
        kwargs = loop._build_kwargs(OrderedDict(), batch, 0)
        self._numbers.begin()
        loop.automatic_optimization._make_closure(kwargs, self._trainer.optimizers[0], 0)()
        self._numbers.undo()
        assert self._held is not None
        self._held.say_what_is_taken()

    def epoch_begins(self) -> None:
        """The last step's hooks have run."""
        assert self._files is not None
        self._files.step_ends()

    def next_batch(self) -> Any:
        """The first batch of the next step, for Lightning. Raises ``StopIteration`` after the last step."""
        assert self._files is not None and self._numbers is not None
        self._numbers.check_hooks()
        self._files.step_ends()
        self._files.flush()
        if self._held is not None and self._trainer is not None and self._trainer.global_step:
            self._held.check()
        if self.received is not None:
            self.received.put_back()
            self.received = None
            self._numbers.events_over()
            self._kept.__exit__(None, None, None)
            if self._begun is _END:
                raise StopIteration
            return self._begun
        step = self._enter() if self._steps is None else self._job.step + 1
        batch = self._advance()
        if self._job.step > step:
            raise RuntimeError(_MISSED)
        self._arrive()
        return batch

    def _enter(self) -> int:
        """Warm up, and enter the job: Lightning's loop is at the step of the job, which is returned."""
        assert self._trainer is not None and self._data is not None and self._files is not None
        steps = total_steps(self._trainer)
        self._held = held_by(self._trainer)
        self._job.track(**self._held.tracked)
        self._steps = iter(self._job.steps(self._data.loader, steps=steps, warm_up=self._warm_up))
        self._advance_or_end()
        assert self._callbacks is not None
        self._joined = self._job.step == 0 or self._callbacks.arrived
        self._arrive()
        follow(self._trainer, self._job.step, begun=False)
        if self._job.step >= steps:  # the hooks of the last epoch's end have run before this process came
            self._files.end(over=True)
            self._trainer.fit_loop.on_advance_end = lambda: None
        return self._job.step

    def _advance(self) -> Any:
        """End the loop body, and begin the next. Raises ``StopIteration``, and :class:`elastrain.Drained`."""
        assert self._trainer is not None
        try:
            return next(self._steps)
        except StopIteration:
            self._trainer.should_stop = True  # all steps are done, or a rank has asked for the end
            raise

    def _advance_or_end(self) -> Any:
        try:
            return self._advance()
        except StopIteration:
            return _END

    def _arrive(self, *, ghost: bool = False) -> None:
        """This process is in a generation, perhaps with a peer's state, and perhaps as its new rank 0.

        ``ghost``: of a step that this rank has not committed; Lightning's events of that step follow."""
        assert self._callbacks is not None and self._files is not None and self._numbers is not None
        self._callbacks.apply(ghost=ghost)
        self._files.apply(ghost=ghost)
        self._numbers.apply(ghost=ghost)
        if ghost:
            self._files.committed()
        self._follow()

    def _follow(self) -> None:
        assert self._files is not None
        rank_zero_only.rank = self._job.rank  # by which Lightning chooses who writes
        self._files.follow()

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run ``closure`` until a step is committed, and apply the optimizer in the executions that count."""
        assert self._files is not None and self._numbers is not None
        self._replaced = None
        self._numbers.begin()
        while True:
            result, execution = closure(), self._execution()
            if self._job.acts(Call.UPDATE, "optimizer_step()"):
                super().optimizer_step(Applied(optimizer), partial(_known, result), model, **kwargs)
                if self._job.committed:
                    self._joined = True
                    self._arrive()  # the last part of a large state may have come with the gradients
                    self._numbers.counts()
                    self._files.committed()
                    return result
                self._step_schedules()
            step, batch = self._job.step, self._advance_or_end()
            if self._execution() != execution:
                self._numbers.undo()
                ghost = self._job.step > step and self._joined
                self._arrive(ghost=ghost)
                if ghost:
                    if self._job.step > step + 1:
                        raise RuntimeError(_MISSED)
                    # The peers have committed the step that was discarded here, and this rank has received their state.
                    # For Lightning the step is done; the next one has begun, and its random numbers must not change.
                    assert self._held is not None
                    self._begun = batch
                    self.received = Received({"model": self.lightning_module, **self._held.tracked}, optimizer)
                    self._kept.__enter__()
                    return result
                self._numbers.begin()
            if not self._joined:
                follow(self._trainer, self._job.step, begun=True)
            if batch is _END:
                raise StopIteration
            self._replaced = self._to_device(batch)

    def _execution(self) -> int | None:
        return None if self._job.body is None else self._job.body.execution

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Of the batch that the job has yielded last."""
        assert self._numbers is not None
        if self._replaced is not None:
            args = (self._replaced, *args[1:])
        self._numbers.begin_body(args[0])
        result = super().training_step(*args, **kwargs)
        self._numbers.end_body()
        return result

    def backward(
        self, closure_loss: torch.Tensor, optimizer: torch.optim.Optimizer | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Compute and average the gradients of the loss."""
        self.pre_backward(closure_loss)
        assert self.lightning_module is not None
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        self._job.backward(loss)
        loss = self.precision_plugin.post_backward(loss, self.lightning_module)
        self.post_backward(loss)
        return loss

    def on_validation_start(self) -> None:
        """Of the state behind the step's events."""
        super().on_validation_start()
        if self.received is not None:
            self.received.put_back()

    def on_train_end(self) -> None:
        """Commit the last step, and leave the loop with the other ranks: all files of rank 0 can be read."""
        super().on_train_end()
        if self._steps is None:
            return
        assert self._trainer is not None and self._files is not None and self._numbers is not None
        vars(self._trainer.fit_loop).pop("on_advance_end", None)
        self._numbers.check_hooks()
        if self.received is not None:
            self.received.put_back()
            self._numbers.events_over()
        self._files.flush()
        if self._job.body is not None and self._job.step + 1 < total_steps(self._trainer):
            say(self._trainer, self._trainer.global_step)
            if self.received is None:  # a callback has ended training: on all ranks, at the same step
                self._job.commit(self._steps)
            self._steps.close()
        if self._advance_or_end() is not _END:
            raise RuntimeError(_STOPPED)
        self._steps = self._data = None
        self._arrive()
        self._job.all_reduce(self._job.step, "max")
        self._files.end()

    def _to_device(self, batch: Any) -> Any:
        """As Lightning's loop does with a batch that it has fetched."""
        assert self.lightning_module is not None
        batch = self.precision_plugin.convert_input(batch)
        batch = self.lightning_module.on_before_batch_transfer(batch, 0)
        return self.batch_to_device(batch, dataloader_idx=0)

    def _step_schedules(self) -> None:
        """A part of this rank's state is missing, and Lightning sees nothing of the step; its schedules do."""
        assert self._trainer is not None and self.lightning_module is not None
        epoch, batch = divmod(self._job.step, int(self._trainer.num_training_batches))
        last = batch + 1 == self._trainer.num_training_batches
        for config in self.lr_scheduler_configs:
            number, due = (batch, True) if config.interval == "step" else (epoch, last)
            if due and (number + 1) % config.frequency == 0:
                self.lightning_module.lr_scheduler_step(config.scheduler, None)

    # -- across the ranks ----------------------------------------------------------------------------------------------
    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """``tensor`` itself: every rank evaluates all data, and what training logs is that of the global batch. Raises
        ``RuntimeError`` for a call of the script in training."""
        if sys._getframe(1).f_globals["__name__"] != results.__name__:
            self._check_whole("strategy.reduce()")
        return tensor

    def all_gather(self, tensor: torch.Tensor, group: Any | None = None, sync_grads: bool = False) -> torch.Tensor:
        """As :meth:`reduce`."""
        self._check_whole("all_gather()")
        return tensor

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        """Rank 0 writes it; a new one, if it is lost before it has ended."""
        write = super().save_checkpoint
        if self._files is None:
            write(checkpoint, filepath, storage_options)
        else:
            self._files.save(write, checkpoint, filepath, storage_options)

    def remove_checkpoint(self, filepath: Any) -> None:
        """As :meth:`save_checkpoint`."""
        if self._files is None:
            super().remove_checkpoint(filepath)
        else:
            self._files.remove(super().remove_checkpoint, filepath)

    @property
    def is_distributed(self) -> bool:
        """In training: there Lightning's results keep whether a number is to be synchronised."""
        return self._steps is not None and self._trainer is not None and bool(self._trainer.training)

    def _check_whole(self, call: str) -> None:
        if self.is_distributed:
            raise one_part(call, "in validation and test")

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Raises ``ValueError`` in ``fit``: the job resumes from ``spec.checkpoint``."""
        if self._trainer is not None and self._trainer.state.fn == TrainerFn.FITTING:
            raise ValueError("fit(ckpt_path=...): not in an elastic job, which resumes from spec.checkpoint")
        loaded: dict[str, Any] = super().load_checkpoint(*args, **kwargs)
        return loaded


def _known(result: Any) -> Any:
    return result
