"""The own loop of Hugging Face's ``Trainer``, or of one that is made from it, as those of TRL."""

from __future__ import annotations

from typing import Any

import torch
from transformers.trainer_utils import TrainOutput

from elastrain.integrations.own_loop import Epochs


def train(trainer: Any, adapter: Any) -> TrainOutput:
    """``train()`` of the class behind ``adapter``, noted by the reference ``trainer.job``."""
    job, step, schedule = trainer.job, trainer.training_step, trainer.create_scheduler
    job.own_loop = True
    trainer.args.per_device_train_batch_size = trainer.args.global_batch_size
    epochs = Epochs(job, trainer.get_train_dataloader())

    def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = step(*args, **kwargs)
        job.computed(loss)
        return loss

    def create_scheduler(*args: Any, **kwargs: Any) -> Any:
        made = schedule(*args, **kwargs)
        job.wrap(trainer.model, optimizer=getattr(trainer.optimizer, "optimizer", trainer.optimizer))
        job.track(lr_scheduler=trainer.lr_scheduler)
        return made

    trainer.training_step, trainer.create_scheduler = training_step, create_scheduler
    trainer.get_train_dataloader = lambda: epochs
    try:
        output: TrainOutput = super(adapter, trainer).train()
        return output
    finally:
        epochs.close()
