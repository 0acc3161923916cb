"""Fabric's strategy over a scripted job: what it hands on to the job."""

from __future__ import annotations

from typing import Any

import pytest
import torch


class RecordingJob:
    """Keeps what it is given."""

    rank, world_size, committed, synchronised, body, switches = 0, 1, True, True, None, False

    def __init__(self) -> None:
        self.tracked: dict[str, Any] = {}
        self.backwards: list[tuple[float, dict[str, Any]]] = []

    def wrap(self, module):
        return module

    def track(self, **objects):
        assert not objects.keys() & self.tracked.keys()
        self.tracked.update(objects)

    def on_commit(self, callback):
        pass

    def acts(self, call, name):
        return self.synchronised

    def backward(self, loss, **options):
        self.backwards.append((float(loss), options))


@pytest.fixture
def strategy(require):
    """Makes a strategy of a recording job, in a precision."""
    require("lightning", "ELASTRAIN_REQUIRE_LIGHTNING")
    from elastrain_frameworks.lightning import ElasticStrategy

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
    assert job.tracked.keys() == {"files", "scaler"} and job.tracked["scaler"] is precision.scaler
    made.backward(torch.tensor(2.0, requires_grad=True), None)
    assert job.backwards == [(16.0, {})]


def test_the_loss_is_not_scaled_in_another_precision(strategy):
    job, made = strategy()
    made.setup_module(torch.nn.Linear(1, 1))
    made.backward(torch.tensor(2.0, requires_grad=True), None, retain_graph=True)
    assert job.tracked.keys() == {"files"}
    assert job.backwards == [(2.0, {"retain_graph": True})]


def test_the_way_out_is_named_if_backward_is_given_gradients(strategy):
    job, made = strategy()
    with pytest.raises(ValueError, match="takes only the loss"):
        made.backward(torch.tensor(2.0), None, torch.tensor(1.0))
    assert not job.backwards


@pytest.fixture
def two(strategy):
    """Two models with gradients 3 and 4, and their optimizers."""
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    for model, gradient in zip(models, (3.0, 4.0), strict=True):
        model.weight.grad = torch.full((1, 1), gradient)
    return *strategy(), models, [torch.optim.SGD(model.parameters(), 0.1) for model in models]


def test_gradients_of_one_model_are_clipped_by_their_own_norm(two):
    _, made, models, optimizers = two
    norm = made.clip_gradients_norm(models[0], optimizers[0], 1.0)
    assert float(norm) == 3.0
    assert [float(model.weight.grad) for model in models] == pytest.approx([1.0, 4.0])
    made.clip_gradients_value(models[1], optimizers[1], 2.0)
    assert [float(model.weight.grad) for model in models] == pytest.approx([1.0, 2.0])


def test_nothing_is_clipped_before_the_gradients_are_complete(two):
    job, made, models, optimizers = two
    job.synchronised = False
    assert made.clip_gradients_norm(models[0], optimizers[0], 1.0) is None
    made.clip_gradients_value(models[0], optimizers[0], 1.0)
    assert float(models[0].weight.grad) == 3.0


def test_optimizer_of_another_model_is_an_error(two):
    _, made, models, optimizers = two
    with pytest.raises(ValueError, match="has no parameter of the module"):
        made.clip_gradients_norm(models[0], optimizers[1], 1.0)


def test_norm_that_is_not_finite_is_an_error_only_if_the_step_counts(two):
    job, made, models, optimizers = two
    models[0].weight.grad.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        made.clip_gradients_norm(models[0], optimizers[0], 1.0)
    job.committed = False
    assert not made.clip_gradients_norm(models[0], optimizers[0], 1.0).isfinite()
