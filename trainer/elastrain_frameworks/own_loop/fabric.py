"""The own loop of a script with Lightning Fabric: its strategy for one device, on whole global batches."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.strategies import SingleDeviceStrategy
from torch import nn

from elastrain_frameworks.lightning.fabric import ElasticStrategy, RankOfJob
from elastrain_frameworks.own_loop import as_mean, of_framework


@of_framework(SingleDeviceStrategy, ElasticStrategy, RankOfJob, keeps=("setup_optimizer",))
class OwnLoop(ElasticStrategy):
    """``SingleDeviceStrategy``, whose objects the reference knows."""

    _job: Any

    def __init__(self, job: Any, device: torch.device | str = "cpu", **options: Any) -> None:
        SingleDeviceStrategy.__init__(self, device, **options)
        self._job, self._optimizers, self._others, self._tracked_scaler = job, 0, 0, False

    def setup_module(self, module: nn.Module) -> nn.Module:
        ElasticStrategy.setup_module(self, module)
        return module

    def _follow_loggers(self) -> None:
        """Fabric writes its files itself."""

    def backward(self, tensor: torch.Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        tensor = as_mean(tensor, kwargs)
        SingleDeviceStrategy.backward(self, tensor, module, *args, **kwargs)
        self._job.computed(tensor)
