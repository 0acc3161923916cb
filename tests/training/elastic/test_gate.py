"""Tracked objects do nothing in a discarded step, whatever order a script makes them in."""

import pickle

import pytest
import torch
from torch import nn

from elastrain.elastic.state.tracked import track


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_optimizer_and_scheduler_stand_still_if_the_step_is_discarded(scheduler_first) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    is_open, tracked = [False], {}

    def make() -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    scheduler = make() if scheduler_first else None
    track(tracked, {"optimizer": optimizer}, {"step": lambda: is_open[0]})
    scheduler = scheduler or make()
    track(tracked, {"scheduler": scheduler}, {"step": lambda: is_open[0]})

    def one_step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()

    before = model.weight.detach().clone()
    one_step()
    assert torch.equal(model.weight, before)
    assert scheduler.get_last_lr() == [1.0]
    is_open[0] = True
    one_step()
    assert not torch.equal(model.weight, before)
    assert scheduler.get_last_lr() == [0.5]
    assert isinstance(optimizer, torch.optim.SGD)


def test_state_holds_no_method_of_the_object_if_it_is_gated() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    track({}, {"optimizer": optimizer, "scheduler": scheduler}, {"step": lambda: True, "zero_grad": lambda: True})
    assert b"SGD" not in pickle.dumps([optimizer.state_dict(), scheduler.state_dict()])


@pytest.mark.parametrize(
    ("name", "thing", "message"),
    [
        ("metric", object(), "no state_dict"),
        ("net", nn.Linear(1, 1), r"job\.wrap"),
        ("model", torch.optim.SGD([torch.zeros(1, requires_grad=True)]), "already tracked"),
    ],
)
def test_error_names_the_argument_if_it_cannot_be_tracked(name, thing, message) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"job\.track\({name}=.*{message}"):
        track({"model": nn.Linear(1, 1)}, {name: thing}, {"step": lambda: True})


def test_gradients_are_kept_if_an_optimizer_clears_them_between_micro_batches() -> None:
    optimizer = torch.optim.SGD([weight := torch.ones(1, requires_grad=True)], lr=1.0)
    may_clear = [False]
    track({}, {"optimizer": optimizer}, {"step": lambda: True, "zero_grad": lambda: may_clear[0]})
    weight.sum().backward()
    optimizer.zero_grad()
    assert weight.grad is not None
    may_clear[0] = True
    optimizer.zero_grad(set_to_none=True)
    assert weight.grad is None
