"""Hugging Face's ``Trainer`` on an elastic job, rescaled in process: needs ``elastrain[huggingface]``.

::

    with elastrain.join() as job:
        args = ElasticTrainingArguments(output_dir="out", global_batch_size=64, num_train_epochs=3)
        trainer = ElasticTrainer(job=job, model=model, args=args, train_dataset=dataset)
        trainer.train()

The Trainer is built for a single process, whose steps the job computes on all ranks, and its own loop runs:
:mod:`elastrain_frameworks.huggingface.loop` has the seams.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput

from elastrain.api import names
from elastrain.elastic.comm.backend import device_of_rank
from elastrain.elastic.job import Job
from elastrain_frameworks.huggingface.loop import Seams, check_seams
from elastrain_frameworks.launcher import single_process
from elastrain_frameworks.refusals import Refusal, refuse, refuse_chosen_batch, word

_ONE_PART = "each rank would count its own part of the batch"
_REFUSALS = (
    Refusal("deepspeed", "ranks are replicas (data parallel) here"),
    Refusal("fsdp", "ranks are replicas (data parallel) here"),
    Refusal("parallelism_config", "ranks are replicas (data parallel) here"),
    Refusal("torch_compile", "compile parts of the model yourself"),
    *(
        Refusal(
            f"{name}_checkpointing_kwargs",
            "the recomputation needs use_reentrant=False",
            lambda options: bool(options.get("use_reentrant")),
        )
        for name in ("activation", "gradient")
    ),
    Refusal("label_smoothing_factor", "give the trainer a compute_loss_func"),
    Refusal("auto_find_batch_size", "the batch is the same on all ranks; choose per_device_train_batch_size"),
    Refusal(
        "train_sampling_strategy",
        "'random', 'sequential' and 'group_by_length' are: the job cuts each batch for its ranks",
        lambda s: s not in ("random", "sequential", "group_by_length"),
    ),
    Refusal("optim", "it steps inside of backward", lambda o: any(w in word(o) for w in ("layerwise", "lomo"))),
    Refusal("include_num_input_tokens_seen", _ONE_PART, lambda v: word(v) not in ("no", "false")),
    Refusal("include_tokens_per_second", _ONE_PART),
    Refusal("save_on_each_node", "rank 0 writes the files"),
    Refusal("enable_jit_checkpoint", "at SIGTERM a worker leaves at the end of a step; the others keep the state"),
    Refusal("resume_from_checkpoint", "the job resumes from spec.checkpoint"),
    *(Refusal(f"ddp_{name}", "the job wraps the model") for name in ("backend", "broadcast_buffers", "static_graph")),
    Refusal(
        "report_to",
        "each new rank 0 would begin a run of its own; for mlflow give the run's id by MLFLOW_RUN_ID",
        lambda services: any(
            s not in ("tensorboard", "wandb") and f"{s.upper()}_RUN_ID" not in os.environ for s in services
        ),
    ),
    Refusal("restore_callback_states_from_checkpoint", "the job resumes from spec.checkpoint, with its callbacks"),
)


@dataclass
class ElasticTrainingArguments(TrainingArguments):
    """``TrainingArguments`` of an elastic job.

    Raises ``ValueError`` with the names of all options that are meaningless in an elastic job.
    """

    global_batch_size: int = field(
        default=0,
        metadata={
            "help": "Samples of one optimizer step over all ranks, for any number of ranks. Default: those of one "
            "process, per_device_train_batch_size * gradient_accumulation_steps."
        },
    )
    per_device_train_batch_size: int = field(
        default=8,
        metadata={"help": "Samples of one micro-batch; a rank accumulates over its part of a step."},
    )
    save_strategy: str = field(
        default="no",
        metadata={"help": "When rank 0 saves a checkpoint of the Trainer. The job resumes from spec.checkpoint."},
    )

    def __post_init__(self) -> None:
        with single_process():
            super().__post_init__()
        accumulated = self.gradient_accumulation_steps
        of_one = self.per_device_train_batch_size * accumulated
        wrong = []
        if self.global_batch_size < 0:
            wrong = [f"global_batch_size: {self.global_batch_size}: must be at least 1; 0: {of_one}"]
        elif accumulated > 1 and self.global_batch_size not in (0, of_one):
            wrong = [
                f"gradient_accumulation_steps: {accumulated}: with global_batch_size={self.global_batch_size} must be "
                "1, since a rank accumulates over its part of a step by itself; or leave global_batch_size out: "
                f"per_device_train_batch_size times the steps is {of_one}"
            ]
        refuse(vars(self), _REFUSALS, also=wrong)
        self.global_batch_size = self.global_batch_size or of_one
        self.disable_tqdm = True  # the bar belongs to the process that started as rank 0
        if torch.cuda.is_available() and not self.use_cpu:
            # For a single process accelerate would choose the first device, or all devices.
            self._n_gpu = 1
            self.__dict__["_setup_devices"] = device_of_rank(int(os.environ.get(names.ENV_LOCAL_RANK, "0")))


class ElasticTrainer(Trainer):
    """``transformers.Trainer`` on an elastic job. What a class derived from it overrides is called by the Trainer's own
    loop.

    As the first base class it also makes another Trainer elastic: ``class Mine(ElasticTrainer, SomeTrainer)``.
    """

    def __new__(cls, *args: Any, job: Job | None = None, **kwargs: Any) -> Any:
        if getattr(job, "is_reference", False):
            from elastrain_frameworks.own_loop.huggingface import OwnLoop

            first: type[Trainer] = OwnLoop
        else:
            check_seams()
            first = Seams
        return object.__new__(type(cls.__name__, (first, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__}))

    def __init__(self, *args: Any, job: Job, **kwargs: Any) -> None:
        """``job``: from :func:`elastrain.join`; all other arguments are the Trainer's, with
        :class:`ElasticTrainingArguments`.

        Raises ``TypeError`` for other arguments classes, ``RuntimeError`` for a version of transformers whose loop has
        other methods.
        """
        self.job = job
        refuse_chosen_batch(job, "ElasticTrainer(job=job)")
        with single_process():
            super().__init__(*args, **kwargs)
        if not isinstance(self.args, ElasticTrainingArguments):
            raise TypeError(f"args: {type(self.args).__name__}: must be ElasticTrainingArguments")

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Train to the end, over all rescales, by the Trainer's own loop. At most one call per job.

        Callbacks see each committed step once, and no other step. A callback ends training by ``should_training_stop``,
        on all ranks after the same step. ``spec.checkpoint`` resumes the job, so ``resume_from_checkpoint`` raises
        ``ValueError``, as does ``trial``, and data in an order that cannot be the job's.
        """
        if resume_from_checkpoint or trial is not None:
            raise ValueError("train(): an elastic job resumes from spec.checkpoint and has no hyperparameter search")
        return super().train(ignore_keys_for_eval=ignore_keys_for_eval)
