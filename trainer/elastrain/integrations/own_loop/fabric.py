"""The own loop of a script with Lightning Fabric: its strategy for one device, on whole global batches."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.strategies import SingleDeviceStrategy
from torch import nn

from elastrain.integrations.lightning import ElasticStrategy, RankOfJob
from elastrain.integrations.own_loop import computed, of_framework


@of_framework(SingleDeviceStrategy, ElasticStrategy, RankOfJob)
class OwnLoop(ElasticStrategy):
    """``SingleDeviceStrategy``, whose objects the reference knows."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        if self._scaler is not None and not self._tracked_scaler:
            self._job.track(scaler=self._scaler)
            self._tracked_scaler = True
        self._job.wrap(module)
        return module

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return ElasticStrategy.setup_optimizer(self, optimizer)

    def backward(self, tensor: torch.Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        count = kwargs.pop("count", None)
        if count is not None:  # a sum over so many tokens
            tensor = tensor / max(int(count), 1)
        SingleDeviceStrategy.backward(self, tensor, module, *args, **kwargs)
        computed(self._job, tensor)
