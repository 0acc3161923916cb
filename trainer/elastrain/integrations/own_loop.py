"""The Trainer's own loop, in a reference of ``elastrain verify``: what :class:`ElasticTrainer` must be equal to.

The adapter's loop steps aside. The job gives the order of the data, in whole global batches, and takes note.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import TrainOutput


class _Epochs:
    """The training data for the Trainer: an iteration is one epoch."""

    def __init__(self, job: Any, loader: Any) -> None:
        self.dataset, self._job, self._loader = loader.dataset, job, loader
        self._epoch = 0
        self._batches: Any = None

    def __len__(self) -> int:
        return int(self._loader.order.steps_per_epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.close()
        self._batches = self._job.steps(self._loader, epochs=self._epoch + 1)
        return iter(self._batches)

    def close(self) -> None:
        """The last batch was trained on."""
        if self._batches is not None:
            self._batches.close()


def train(trainer: Any) -> TrainOutput:
    """``Trainer.train()``, noted by the reference ``trainer.job``."""
    job, step, schedule = trainer.job, trainer.training_step, trainer.create_scheduler
    trainer.args.per_device_train_batch_size = trainer.args.global_batch_size
    epochs = _Epochs(job, trainer.get_train_dataloader())

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
        output: TrainOutput = Trainer.train(trainer)
        return output
    finally:
        epochs.close()
