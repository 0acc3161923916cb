"""Objects of a process that the job does not track: which are watched, and which are left alone."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from elastrain.elastic.body.untracked import Untracked, instances


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


def test_no_thread_that_builds_a_tuple_is_ended_if_objects_are_looked_for() -> None:
    stop, errors, interval = threading.Event(), list[BaseException](), sys.getswitchinterval()

    def build() -> None:
        try:
            while not stop.is_set():
                tuple([i] for i in range(30))
        except SystemError as e:
            errors.append(e)

    threads = [threading.Thread(target=build) for _ in range(3)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        layers = [nn.Linear(1, 1), nn.Bilinear(1, 1, 1)]
        for _ in range(10):
            found = {id(obj) for obj in instances({nn.Linear, nn.Bilinear})}
            assert {id(layer) for layer in layers} <= found
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not errors


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
