"""The own loop of Hugging Face's ``Trainer``, or of one that is made from it, as those of TRL."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from transformers import Trainer

from elastrain.data.loader import ElasticLoader
from elastrain_frameworks.huggingface.loop import loader_of
from elastrain_frameworks.training_data import Epochs


class OwnLoop(Trainer):
    """In the place of the seams: whole global batches, of which the reference takes note."""

    job: Any
    _epochs: Epochs | None = None

    def _inner_training_loop(self, *args: Any, **options: Any) -> Any:
        self.job.own_loop = True
        loader = loader_of(self, super().get_train_dataloader())
        batches = None if loader.order.length is None else loader.order.steps_per_epoch
        self._epochs = Epochs(loader, partial(self._steps, loader), batches=batches)
        self.args.per_device_train_batch_size = self.args.global_batch_size
        self.args.gradient_accumulation_steps = 1
        return super()._inner_training_loop(*args, **options)

    def _steps(self, loader: ElasticLoader, epochs: int) -> Iterator[Any]:
        yield from self.job.steps(loader, epochs=epochs)
        if self.job.ended:  # before the Trainer's last step, whose loop would go on with an epoch without a batch
            self.control.should_training_stop = True

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader() if self._epochs is None else self._epochs

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.job.computed(loss)
        return loss

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        made = super().create_scheduler(*args, **kwargs)
        self.job.wrap(self.model, optimizer=getattr(self.optimizer, "optimizer", self.optimizer))
        self.job.track(lr_scheduler=self.lr_scheduler)
        return made
