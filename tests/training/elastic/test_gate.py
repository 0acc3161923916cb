"""Tracked objects do nothing in a discarded step, for any order of their creation."""

import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from elastrain.elastic.body.several import SeveralBackwards
from elastrain.elastic.contract import Contract, Phase
from elastrain.elastic.state.tracked import Tracker
from elastrain.elastic.undo.leaves import Leaves


class Script:
    """A script in a phase that the test sets, with what it tracks."""

    def __init__(self, phase: Phase = Phase.COMMITTED) -> None:
        self.phase, self.tracked = phase, {}
        contract = Contract(lambda: self.phase)
        several = SeveralBackwards(Leaves(self.tracked), contract, lambda: None, lambda: None)
        self._tracker = Tracker(self.tracked, contract, several.step_with)
        self.unscaled = self._tracker.unscaled

    def track(self, **objects: object) -> None:
        self._tracker.track(objects)


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_optimizer_and_scheduler_do_nothing_if_the_step_is_discarded(scheduler_first) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    script = Script(Phase.DISCARDED)

    def make() -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    scheduler = make() if scheduler_first else None
    script.track(optimizer=optimizer)
    scheduler = scheduler or make()
    script.track(scheduler=scheduler)

    def one_step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()

    before = model.weight.detach().clone()
    one_step()
    assert torch.equal(model.weight, before)
    assert scheduler.get_last_lr() == [1.0]
    script.phase = Phase.COMMITTED
    one_step()
    assert not torch.equal(model.weight, before)
    assert scheduler.get_last_lr() == [0.5]
    assert isinstance(optimizer, torch.optim.SGD)


def test_state_holds_no_method_of_the_object_if_it_is_gated() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    Script().track(optimizer=optimizer, scheduler=scheduler)
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
    script = Script()
    script.tracked["model"] = nn.Linear(1, 1)
    with pytest.raises((TypeError, ValueError), match=rf"job\.track\({name}=.*{message}"):
        script.track(**{name: thing})


@pytest.mark.parametrize("phase", [Phase.WARM_UP, Phase.PARTIAL, Phase.DISCARDED])
def test_a_scaler_and_an_average_do_nothing_if_the_step_is_not_committed(phase) -> None:
    net, script = nn.Linear(2, 1), Script(phase)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler, average = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1), AveragedModel(net)
    script.track(optimizer=optimizer, scaler=scaler, average=average)

    def one_step() -> None:
        scaler.scale(net(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(net)

    before = net.weight.detach().clone()
    one_step()
    assert torch.equal(net.weight, before)
    assert (scaler.get_scale(), int(average.n_averaged)) == (4.0, 0)
    script.phase = Phase.COMMITTED
    one_step()
    assert not torch.equal(net.weight, before)
    assert (scaler.get_scale(), int(average.n_averaged)) == (8.0, 1)


def test_the_reported_loss_is_the_one_before_the_scaler() -> None:
    script, scaler = Script(), torch.amp.GradScaler("cpu", init_scale=4.0)
    script.track(scaler=scaler)
    loss = torch.tensor(3.0)
    scaled = scaler.scale(loss)
    assert scaled.item() == 12.0
    assert script.unscaled(scaled) is loss
    assert script.unscaled(scaled) is scaled, "a later loss is taken for an earlier one"


def test_error_names_the_place_for_a_schedule_that_steps_before_backward() -> None:
    script = Script(Phase.FRESH)
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    script.track(scheduler=scheduler)
    with pytest.raises(RuntimeError, match=r"StepLR\.step\(\) before a step's first backward: .*behind job\.backward"):
        scheduler.step()
