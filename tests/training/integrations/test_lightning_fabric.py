"""Fabric's strategy over a scripted job: what it hands on to the job."""

from __future__ import annotations

from typing import Any

import pytest
import torch


class RecordingJob:
    """Keeps what it is given."""

    rank, world_size = 0, 1

    def __init__(self) -> None:
        self.tracked: dict[str, Any] = {}
        self.backwards: list[tuple[float, dict[str, Any]]] = []

    def wrap(self, module):
        return module

    def track(self, **objects):
        assert not objects.keys() & self.tracked.keys()
        self.tracked.update(objects)

    def backward(self, loss, **options):
        self.backwards.append((float(loss), options))


@pytest.fixture
def strategy(require):
    """Makes a strategy of a recording job, in a precision."""
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    from elastrain.integrations.lightning import ElasticStrategy

    def make(precision=None):
        job = RecordingJob()
        return job, ElasticStrategy(job, precision=precision)

    return make


def test_the_loss_scale_is_tracked_once_and_applied_to_each_loss(strategy):
    from lightning.fabric.plugins import MixedPrecision

    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=8.0))
    job, made = strategy(precision)
    for module in (torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)):
        made.setup_module(module)
    assert job.tracked == {"scaler": precision.scaler}
    made.backward(torch.tensor(2.0, requires_grad=True), None)
    assert job.backwards == [(16.0, {})]


def test_the_loss_is_not_scaled_in_another_precision(strategy):
    job, made = strategy()
    made.setup_module(torch.nn.Linear(1, 1))
    made.backward(torch.tensor(2.0, requires_grad=True), None, retain_graph=True)
    assert not job.tracked
    assert job.backwards == [(2.0, {"retain_graph": True})]


def test_the_way_out_is_named_if_backward_is_given_gradients(strategy):
    job, made = strategy()
    with pytest.raises(ValueError, match="takes only the loss"):
        made.backward(torch.tensor(2.0), None, torch.tensor(1.0))
    assert not job.backwards
