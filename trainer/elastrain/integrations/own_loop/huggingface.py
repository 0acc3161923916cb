"""The own loop of Hugging Face's ``Trainer``, or of one that is made from it, as those of TRL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from elastrain.integrations.huggingface.loop import loader_of
from elastrain.integrations.own_loop import Epochs


@contextmanager
def noted(trainer: Any) -> Iterator[None]:
    """Around ``trainer.train()`` without seams, on whole global batches; the reference ``trainer.job`` takes note."""
    job, step, schedule = trainer.job, trainer.training_step, trainer.create_scheduler
    job.own_loop = True
    epochs = Epochs(job, loader_of(trainer, trainer.get_train_dataloader()))
    trainer.args.per_device_train_batch_size = trainer.args.global_batch_size
    trainer.args.gradient_accumulation_steps = 1

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
        yield
    finally:
        epochs.close()
