"""Optimizers and schedulers that a job does not track: which are refused, and which are left alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, SequentialLR, StepLR

from elastrain.elastic.body.untracked import Untracked


@pytest.fixture
def tracked() -> dict[str, Any]:
    net = nn.Linear(2, 1)
    return {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}


@pytest.fixture
def untracked(tracked) -> Iterator[Untracked]:
    watched = Untracked(tracked, lambda: True)
    yield watched
    watched.close()


def test_a_scheduler_of_a_tracked_optimizer_is_refused_unless_it_or_its_holder_is_tracked(untracked, tracked) -> None:
    tracked["optimizer"].points_to = weakref.proxy(nn.Identity())  # collected at once
    parts = [StepLR(tracked["optimizer"], 1), ConstantLR(tracked["optimizer"])]
    with pytest.raises(RuntimeError, match="scheduler="):
        untracked.watch(sharded=True)
    for holder in (parts[0], SequentialLR(tracked["optimizer"], parts, [2]), SimpleNamespace(schedules=parts)):
        tracked["holder"], untracked._watches = holder, False
        untracked.watch(sharded=True)


def test_a_step_is_refused_if_its_optimizer_trains_the_model_and_neither_it_nor_its_holder_is_tracked(
    untracked, tracked
) -> None:
    net, scheduler = tracked["model"], tracked.setdefault("scheduler", StepLR(tracked.pop("optimizer"), 1))
    with pytest.raises(RuntimeError, match="optimizer=optimizer"):
        scheduler.optimizer.step()
    tracked["holder"] = SimpleNamespace(inner=torch.optim.SGD(net.parameters(), lr=0.1))
    tracked["holder"].inner.step()
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1).step()
