"""The own loop of Lightning's ``Trainer``: its strategy for one device, on whole global batches."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn

from elastrain_frameworks.lightning.fabric import RankOfJob
from elastrain_frameworks.lightning.options import total_steps
from elastrain_frameworks.lightning.trainer import ElasticTrainerStrategy
from elastrain_frameworks.own_loop import of_framework


@of_framework(SingleDeviceStrategy, ElasticTrainerStrategy, RankOfJob)
class OwnLoop(ElasticTrainerStrategy):
    """``SingleDeviceStrategy``, whose objects the reference knows. It gives Lightning the job's batches."""

    _job: Any
    process_dataloader = ElasticTrainerStrategy.process_dataloader

    def epoch_begins(self) -> None:
        """Lightning writes its files itself."""

    def next_batch(self) -> Any:
        """Raises ``StopIteration`` after the last step."""
        assert self._trainer is not None and self._data is not None
        if self._steps is None:
            self._steps = iter(self._job.steps(self._data.loader, steps=total_steps(self._trainer)))
        return self._advance()

    def setup(self, trainer: Trainer) -> None:
        self._trainer = trainer
        SingleDeviceStrategy.setup(self, trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._track(trainer)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        assert self._trainer is not None
        if self._trainer.state.fn == TrainerFn.FITTING:
            self._job.wrap(model)
        return model

    def backward(
        self, closure_loss: torch.Tensor, optimizer: torch.optim.Optimizer | None, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        loss = SingleDeviceStrategy.backward(self, closure_loss, optimizer, *args, **kwargs)
        self._job.computed(closure_loss)
        return loss

    def on_train_end(self) -> None:
        """Commit the last step."""
        SingleDeviceStrategy.on_train_end(self)
        if self._steps is not None:
            self._steps.close()
        self._steps = self._data = None
