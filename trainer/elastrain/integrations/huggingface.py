"""Hugging Face's ``Trainer`` on an elastic job, rescaled in process: needs ``elastrain[huggingface]``.

::

    with elastrain.join() as job:
        args = ElasticTrainingArguments(output_dir="out", global_batch_size=64, num_train_epochs=3)
        trainer = ElasticTrainer(job=job, model=model, args=args, train_dataset=dataset)
        trainer.train()

The Trainer provides model, loss, optimizer, schedule, collator, callbacks, logs and evaluation; the job provides the
loop. The Trainer's own loop would count a repeated step twice, and accelerate splits the data by a world size that it
reads once. So the Trainer is built for a single process, accelerate neither wraps nor shards, and each step runs
through :meth:`elastrain.Job.steps`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput

from elastrain.api import names
from elastrain.data.loader import ElasticLoader
from elastrain.elastic.job import Job
from elastrain.integrations.launcher import single_process
from elastrain.integrations.refusals import Refusal, refuse, refuse_chosen_batch, word

_REFUSALS = (
    Refusal(
        "gradient_accumulation_steps",
        "leave it out: global_batch_size and per_device_train_batch_size determine how often a rank accumulates",
        lambda n: n != 1,
    ),
    Refusal("deepspeed", "ranks are replicas (data parallel) here"),
    Refusal("fsdp", "ranks are replicas (data parallel) here"),
    Refusal("torch_compile", "compile parts of the model yourself"),
    Refusal(
        "gradient_checkpointing_kwargs",
        "DDP needs use_reentrant=False, which is the default here",
        lambda options: bool(options.get("use_reentrant")),
    ),
    Refusal("label_smoothing_factor", "give the trainer a compute_loss_func"),
    Refusal("neftune_noise_alpha", "add the noise in the model"),
    Refusal("auto_find_batch_size", "the batch is the same on all ranks; choose per_device_train_batch_size"),
    Refusal(
        "train_sampling_strategy",
        "'random', 'sequential' and 'group_by_length' are: the job cuts each batch for its ranks",
        lambda s: s not in ("random", "sequential", "group_by_length"),
    ),
    Refusal("load_best_model_at_end", "keep what you evaluate yourself, in a callback"),
    Refusal("save_total_limit", "nothing is deleted; spec.checkpoint.keep bounds the job's own checkpoints"),
    Refusal("optim", "it steps inside of backward", lambda o: any(w in word(o) for w in ("layerwise", "lomo"))),
    Refusal("lr_scheduler_type", "each rank would follow its own evaluation", lambda s: "plateau" in word(s)),
)


@dataclass
class ElasticTrainingArguments(TrainingArguments):
    """``TrainingArguments`` of an elastic job.

    Raises ``ValueError`` with the names of all options that are meaningless in an elastic job.
    """

    global_batch_size: int = field(
        default=0, metadata={"help": "Samples of one optimizer step over all ranks, for any number of ranks. Required."}
    )
    per_device_train_batch_size: int = field(
        default=8,
        metadata={"help": "Samples of one micro-batch; a rank accumulates over its part of a step."},
    )
    save_strategy: str = field(
        default="no",
        metadata={"help": "When rank 0 saves the model (not the optimizer: spec.checkpoint holds the job's state)."},
    )

    def __post_init__(self) -> None:
        with single_process():
            super().__post_init__()
        missing = [
            f"global_batch_size: {self.global_batch_size}: must be at least 1: the samples of one optimizer step, "
            "over all ranks together"
        ]
        refuse(vars(self), _REFUSALS, also=missing if self.global_batch_size < 1 else ())
        self.disable_tqdm = True  # the bar belongs to the process that started as rank 0
        if torch.cuda.is_available() and not self.use_cpu:
            # For a single process accelerate would choose the first device, or all devices.
            self._n_gpu = 1
            self.__dict__["_setup_devices"] = torch.device("cuda", int(os.environ.get(names.ENV_LOCAL_RANK, "0")))


class _History:
    """State of callbacks and logs over the past steps; tracked, so that a joiner receives it."""

    def __init__(self, state: Any, handler: Any) -> None:
        self.state = state
        self.handler = handler
        """Callbacks with exported state, such as a patience counter."""
        self.step = 0
        """The last committed step included here."""
        self.loss = 0.0
        """Sum of the losses since the last log."""
        self.steps = 0
        """Number of these losses."""
        self.norm: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "loss": self.loss,
            "steps": self.steps,
            "log_history": [*self.state.log_history],
            "best_metric": self.state.best_metric,
            "callbacks": {name: c.state()["attributes"] for name, c in self._counting().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.loss, self.steps = state["step"], state["loss"], state["steps"]
        self.state.log_history = [*state["log_history"]]
        self.state.best_metric = state["best_metric"]
        counting = self._counting()
        for name in counting.keys() & state.get("callbacks", {}).keys():  # this rank may have other callbacks
            vars(counting[name]).update(state["callbacks"][name])
        self.state.global_step = self.step

    def _counting(self) -> dict[str, Any]:
        return {type(c).__name__: c for c in self.handler.callbacks if isinstance(c, ExportableState)}

    def add(self, step: int, loss: float) -> None:
        self.step, self.loss, self.steps = step, self.loss + loss, self.steps + 1

    def mean_loss(self) -> float:
        """Mean loss since the last call."""
        mean = self.loss / max(1, self.steps)
        self.loss, self.steps = 0.0, 0
        return mean


class ElasticTrainer(Trainer):
    """``transformers.Trainer`` on an elastic job.

    As the first base class it also makes another Trainer elastic: ``class Mine(ElasticTrainer, SomeTrainer)``.
    """

    control: Any  # type checkers miss the Trainer's own declaration

    def __init__(self, *args: Any, job: Job, **kwargs: Any) -> None:
        """``job``: from :func:`elastrain.join`; all other arguments are the Trainer's, with
        :class:`ElasticTrainingArguments`.

        Raises ``TypeError`` for other arguments classes.
        """
        self.job = job
        refuse_chosen_batch(job, "ElasticTrainer(job=job)")
        with single_process():
            super().__init__(*args, **kwargs)
        if not isinstance(self.args, ElasticTrainingArguments):
            raise TypeError(f"args: {type(self.args).__name__}: must be ElasticTrainingArguments")
        self._history = _History(self.state, self.callback_handler)
        self._total = self._per_epoch = 0

    # -- the Trainer's queries -----------------------------------------------------------------------------------------
    def is_world_process_zero(self) -> bool:
        """Whether this process has rank 0 of the present generation."""
        return bool(self.job.rank == 0)

    def is_local_process_zero(self) -> bool:
        """Whether this process has local rank 0."""
        return os.environ.get(names.ENV_LOCAL_RANK, "0") == "0"

    def get_train_dataloader(self) -> ElasticLoader:
        """The training set in the job's order. Raises ``ValueError`` without a training set."""
        if self.train_dataset is None:
            raise ValueError("train_dataset: None: must be a dataset")
        args, dataset, collate = self.args, self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names") and hasattr(dataset, "remove_columns"):  # of the package `datasets`
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        return self.job.dataloader(
            dataset,
            global_batch_size=args.global_batch_size,
            micro_batch_size=args.per_device_train_batch_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            drop_last=args.dataloader_drop_last,
            **self._order(dataset),
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
        )

    def _order(self, dataset: Any) -> dict[str, Any]:
        """The arguments of :meth:`elastrain.Job.dataloader` for ``train_sampling_strategy``."""
        strategy = getattr(self.args, "train_sampling_strategy", None)
        grouped = strategy == "group_by_length" or getattr(self.args, "group_by_length", False)
        sampler = self._get_train_sampler(dataset) if grouped else None
        if sampler is not None:
            sampler.batch_size = self.args.global_batch_size  # samples of similar length meet in a global batch
            return {"sampler": sampler}
        return {"shuffle": False} if strategy == "sequential" else {}

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the model on rank 0; does nothing on other ranks."""
        if self.job.rank == 0:
            super().save_model(*args, **kwargs)

    # -- the loop ------------------------------------------------------------------------------------------------------
    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Train to the end, over all rescales. At most one call per job.

        Callbacks see each committed step once, and no other step. If a callback of any rank requests an early stop, all
        ranks end with the next step (:meth:`elastrain.Job.stop`). ``spec.checkpoint`` resumes the job, so
        ``resume_from_checkpoint`` raises ``ValueError``, as does ``trial``.
        """
        if resume_from_checkpoint or trial is not None:
            raise ValueError("train(): an elastic job resumes from spec.checkpoint and has no hyperparameter search")
        args, job = self.args, self.job
        if getattr(job, "is_reference", False):
            from elastrain.integrations.own_loop.huggingface import train

            return train(self, ElasticTrainer)
        loader = self.get_train_dataloader()
        self._per_epoch = loader.order.steps_per_epoch
        self._total = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * self._per_epoch)
        self.create_optimizer_and_scheduler(num_training_steps=self._total)
        self.model_wrapped = job.wrap(self.model, optimizer=self.optimizer, **self._ddp_options())
        job.track(lr_scheduler=self.lr_scheduler, history=self._history)
        if self.accelerator.scaler is not None:
            job.track(scaler=self.accelerator.scaler)
        job.on_commit(self._committed)
        if args.gradient_checkpointing:
            options = {"use_reentrant": False, **(args.gradient_checkpointing_kwargs or {})}
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        self._begin(ignore_keys_for_eval)
        for inputs in job.steps(loader, steps=self._total):
            self._body(inputs)
        self.is_in_train = False
        self._show_place()
        self.control = self.callback_handler.on_train_end(args, self.state, self.control)
        return TrainOutput(job.step, job.loss or 0.0, {})

    def _body(self, inputs: Any) -> None:
        """One micro-batch of one execution of a step; the job withholds early or unwanted effects."""
        if not self.model.training:  # an evaluation has switched the mode
            self.model_wrapped.train()
        # The Trainer's own count of the tokens that it averages over; None if its loss is a mean over the samples.
        (inputs,), tokens = self.get_batch_samples(iter([inputs]), 1, self.args.device)
        count = {} if tokens is None else {"count": tokens.long()}  # the Trainer's is a quotient by one
        inputs = self._prepare_inputs(inputs)
        items = None if tokens is None else self._items(tokens)
        with self.accelerator.autocast():
            loss = self.compute_loss(self.model_wrapped, inputs, num_items_in_batch=items)
        self._backward(loss if items is None else loss * items, count)
        if self.args.max_grad_norm:
            norm = self.job.clip_grad_norm_(self.args.max_grad_norm)
            self._history.norm = None if norm is None else float(norm)
        if self._step_optimizer():
            self.lr_scheduler.step()
        self.optimizer.zero_grad()

    def _items(self, tokens: torch.Tensor) -> torch.Tensor:
        """What a loss over ``tokens`` is divided by: 1, or their number if the mean loss of the experts is added."""
        if getattr(self.model.config, "output_router_logits", False):
            return torch.clamp(tokens, min=1)
        return torch.ones_like(tokens)

    def _backward(self, loss: torch.Tensor, count: dict[str, Any]) -> None:
        """Backward on the mean over samples, or on the sum over a ``count`` of tokens; gradients are not scaled."""
        if (scaler := self.accelerator.scaler) is None:
            self.job.backward(loss, **count)
            return
        self.job.backward(scaler.scale(loss), **count)
        scaler.unscale_(self.optimizer)

    def _step_optimizer(self) -> bool:
        """Whether the optimizer has made its step; with fp16 it leaves out those with infinite gradients."""
        if (scaler := self.accelerator.scaler) is None:
            self.optimizer.step()
            return True
        scale = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        return bool(scaler.get_scale() >= scale)

    def _ddp_options(self) -> dict[str, Any]:
        options = {
            "find_unused_parameters": self.args.ddp_find_unused_parameters,
            "bucket_cap_mb": self.args.ddp_bucket_cap_mb,
        }
        return {name: value for name, value in options.items() if value}

    def _begin(self, ignore_keys_for_eval: Any) -> None:
        args, state = self.args, self.state
        self.is_in_train = True
        self._ignore_keys = ignore_keys_for_eval
        state.max_steps = self._total
        state.num_train_epochs = math.ceil(self._total / self._per_epoch)
        state.train_batch_size = args.per_device_train_batch_size
        state.compute_steps(args, self._total)
        self.callback_handler.model = self.model
        self.callback_handler.optimizer = self.optimizer
        self.callback_handler.lr_scheduler = self.lr_scheduler
        state.is_world_process_zero = state.is_local_process_zero = False  # until the first generation
        self.control = self.callback_handler.on_train_begin(args, state, self.control)
        self.control = self.callback_handler.on_epoch_begin(args, state, self.control)

    def _show_place(self) -> None:
        """Set the rank that callbacks see; it changes with the generation."""
        self.state.is_world_process_zero = self.state.is_local_process_zero = self.is_world_process_zero()

    # -- once per committed step ---------------------------------------------------------------------------------------
    def _committed(self) -> None:
        args, state, step = self.args, self.state, self.job.step
        if self._history.step >= step:
            return  # received from a peer; the peer's history includes the step
        self._history.add(step, self.job.loss or 0.0)
        state.global_step, state.epoch = step, step / self._per_epoch
        self._show_place()
        self.control = self.callback_handler.on_step_end(args, state, self.control)
        epoch_ends = step % self._per_epoch == 0 or step == self._total
        if epoch_ends:
            self.control = self.callback_handler.on_epoch_end(args, state, self.control)
        self._do_as_told()
        if self.control.should_training_stop and step < self._total:
            self.job.stop()
        if step < self._total:
            if epoch_ends:
                self.control = self.callback_handler.on_epoch_begin(args, state, self.control)
            # Also resets the requests of this step.
            self.control = self.callback_handler.on_step_begin(args, state, self.control)

    def _do_as_told(self) -> None:
        """Log, evaluate and save at a callback's request. The Trainer's own ``DefaultFlowCallback`` follows the
        arguments."""
        history, state = self._history, self.state
        if self.control.should_log:
            logs = {"loss": history.mean_loss(), "learning_rate": self.optimizer.param_groups[0]["lr"]}
            if history.norm is not None:
                logs["grad_norm"] = history.norm
            self.log(logs)
        if self.control.should_evaluate:
            metrics = self.evaluate(ignore_keys=self._ignore_keys)
            self._determine_best_metric(metrics, trial=None)
        if self.control.should_save:
            self.save_model(os.path.join(self.args.output_dir, f"checkpoint-{state.global_step}"))  # noqa: PTH118
            self.control = self.callback_handler.on_save(self.args, state, self.control)
