"""Objects of a process that the job does not track: which are watched, and which are left alone."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from elastrain.elastic.body.untracked import Untracked


class Raises(nn.Module):
    """A layer of a library, of which not every attribute can be read."""

    def update(self) -> None:
        """As averages have."""

    @property
    def module(self) -> nn.Module:
        raise RuntimeError("the weights are not there yet")


@pytest.fixture
def tracked() -> dict[str, Any]:
    net = nn.Linear(2, 1)
    return {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}


@pytest.fixture
def untracked(tracked) -> Iterator[Untracked]:
    watched = Untracked(tracked, lambda: True)
    yield watched
    watched.close()


def test_objects_that_cannot_be_read_are_left_alone_if_they_are_in_the_process(untracked) -> None:
    half_made = [Raises(), StepLR.__new__(StepLR), torch.amp.GradScaler.__new__(torch.amp.GradScaler)]
    half_made.append(AveragedModel.__new__(AveragedModel))
    kinds = [type(obj) for obj in half_made]
    untracked.watch(sharded=True)
    assert [type(obj) for obj in half_made] == kinds


@pytest.mark.parametrize("call", ["scheduler", "scaler", "average"])
def test_an_update_is_refused_if_its_object_is_not_tracked(untracked, tracked, call) -> None:
    scheduler = StepLR(tracked["optimizer"], 1)
    scaler = torch.amp.GradScaler("cpu")
    average = AveragedModel(tracked["model"])
    untracked.watch(sharded=True)
    calls = {
        "scheduler": scheduler.step,
        "scaler": lambda: scaler.scale(torch.ones(())),
        "average": lambda: average.update_parameters(tracked["model"]),
    }
    with pytest.raises(RuntimeError, match=f"{call}="):
        calls[call]()


def test_a_lost_object_that_a_tracked_one_points_to_ends_nothing(untracked, tracked) -> None:
    scheduler = StepLR(tracked["optimizer"], 1)
    tracked["holder"] = holder = nn.Identity()
    tracked["optimizer"].points_to = weakref.proxy(nn.Identity())  # collected at once
    del holder
    untracked.watch(sharded=True)
    with pytest.raises(RuntimeError, match="scheduler="):
        scheduler.step()
