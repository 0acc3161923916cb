"""What Lightning's loop gets in place of its data, schedules and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from elastrain.data.loader import ElasticLoader


class Steps:
    """The training data in Lightning's eyes: an epoch is as many batches as the job has steps in one."""

    def __init__(self, strategy: Any, loader: ElasticLoader) -> None:
        self.loader, self.sampler = loader, self
        self._strategy = strategy

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls it before the hooks of an epoch's begin, which follow the last step."""
        self._strategy.epoch_begins()

    def __len__(self) -> int:
        return self.loader.order.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                batch = self._strategy.next_batch()
            except StopIteration:
                return
            yield batch


class Schedule:
    """A schedule that leaves out the step whose effect this rank has received with a peer's state."""

    def __init__(self, scheduler: Any, strategy: Any) -> None:
        self.scheduler, self._strategy = scheduler, strategy

    def step(self, *args: Any, **kwargs: Any) -> None:
        if self._strategy.received is None:
            self.scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)


class Applied:
    """An optimizer whose gradients are complete: the closure that Lightning passes to ``step`` runs before it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        result = closure() if closure is not None else None
        self.optimizer.step(**kwargs)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)
