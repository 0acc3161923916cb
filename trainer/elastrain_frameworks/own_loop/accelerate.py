"""The own loop of a script with accelerate: its Accelerator, on whole global batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from elastrain.data.loader import ElasticLoader
from elastrain_frameworks.accelerate import ElasticAccelerator
from elastrain_frameworks.own_loop import as_mean, of_framework
from elastrain_frameworks.training_data import Epochs


@of_framework(
    Accelerator, ElasticAccelerator, keeps=("prepare_optimizer", "prepare_scheduler", "register_for_checkpointing")
)
class OwnLoop(ElasticAccelerator):
    """``accelerate.Accelerator``, whose objects the reference ``job`` knows."""

    job: Any

    def __init__(self, job: Any, **options: Any) -> None:
        self.job, self._training = job, None
        Accelerator.__init__(self, **options)
        self._accumulated = int(self.gradient_state.num_steps)
        self.gradient_state.plugin_kwargs["num_steps"] = 1
        if self.scaler is not None:
            job.track(scaler=self.scaler)

    @property
    def gradient_accumulation_steps(self) -> int:
        """As the script says, which may compute with it. The batches are whole."""
        return self._accumulated

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self._accumulated = steps

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        ready = (self._of_job(arg) if isinstance(arg, ElasticLoader) else arg for arg in args)
        return Accelerator.prepare(self, *ready, device_placement=device_placement)

    def prepare_model(self, model: torch.nn.Module, *args: Any, **options: Any) -> torch.nn.Module:
        model = Accelerator.prepare_model(self, model, *args, **options)
        trained = not (options.get("evaluation_mode") or args[1:2] == (True,))
        if trained and any(p.requires_grad for p in model.parameters()):
            self.job.wrap(model)
        return model

    def prepare_data_loader(self, data_loader: Any, *args: Any, **options: Any) -> Any:
        if isinstance(data_loader, Epochs):
            return data_loader
        if self._training is not None:
            return Accelerator.prepare_data_loader(self, data_loader, *args, **options)
        return self._of_job(self._elastic(data_loader), data_loader)

    def _of_job(self, loader: ElasticLoader, source: DataLoader[Any] | None = None) -> Any:
        return self._adopt(loader, source)

    def steps(self, loader: ElasticLoader, epochs: int) -> Iterator[Any]:
        return iter(self.job.steps(loader, epochs=epochs))

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        loss = as_mean(loss, options)
        Accelerator.backward(self, loss * self._accumulated, **options)
        self.job.computed(loss)
