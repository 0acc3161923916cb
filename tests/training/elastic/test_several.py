"""Closures of optimizers, and the copy of the state that a discarded loop body is put back to."""

from typing import Any

import pytest
import torch
from torch import nn

from elastrain.data.order import Slice
from elastrain.data.share import Place, Share
from elastrain.elastic.body.several import SeveralBackwards
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.decide import Known
from elastrain.elastic.commit.step import Step
from elastrain.elastic.contract import Contract
from elastrain.elastic.state import capture, host_copy
from elastrain.elastic.state.host_copy import DEVICE_SHARE, HostCopy
from elastrain.elastic.state.tracked import Tracker
from elastrain.elastic.torch_private import pytree
from elastrain.elastic.undo.leaves import Leaves
from played_card import OnCard

SUMS = Summed([0.0] * control.SIZE, ())


class Body:
    """A loop body on one rank, with one optimizer; ``lost``: the backward that loses a worker."""

    def __init__(self, kind: type[torch.optim.Optimizer], *, warm_up: bool = False, lost: int = 0) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1)
        self.x = torch.randn(8, 2)
        part = Slice((0,), (0,), weight=1.0, epoch=0)
        self.step = Step(0, Place(0, 0, 1), Share(0, 1), (part,), warm_up=warm_up, begun=1)
        contract, tracked = Contract(lambda: self.step.phase), {}
        self.leaves = Leaves(tracked)
        self.several = SeveralBackwards(self.leaves, contract, lambda: self.step, lambda: None)
        tracker = Tracker(tracked, contract, self.several.step_with)
        self.optimizer = kind(self.net.parameters(), lr=0.1)
        tracker.track({"optimizer": self.optimizer})
        tracked["model"] = self.net
        self.lost, self.evaluations = lost, 0

    def closure(self) -> torch.Tensor:
        self.evaluations += 1
        self.optimizer.zero_grad()
        loss = self.net(self.x).pow(2).mean()
        loss.backward()
        self.step.done = 1
        self.step.decide(Known(1, SUMS, vouched=self.evaluations != self.lost))
        return loss.detach()

    def weights(self) -> list[float]:
        return self.net.weight.flatten().tolist()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_closure_runs_once_and_nothing_is_updated_in_the_warm_up(kind) -> None:
    body = Body(kind, warm_up=True)
    before = body.weights()
    assert body.optimizer.step(body.closure) == body.net(body.x).pow(2).mean()
    assert (body.evaluations, body.weights()) == (1, before)
    assert body.step.closures == (kind is torch.optim.LBFGS), "only its updates need a copy of the state"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_optimizer_runs_its_closure_if_the_step_counts(kind) -> None:
    body, plain = Body(kind), Body(kind)
    body.several.allowed = True
    body.optimizer.step(closure=body.closure)
    original = kind(plain.net.parameters(), lr=0.1)
    plain.optimizer = original
    original.step(plain.closure)
    assert (body.evaluations, body.weights()) == (plain.evaluations, plain.weights())


def test_the_closure_that_loses_a_worker_is_the_last_one_and_the_state_is_put_back() -> None:
    body = Body(torch.optim.LBFGS, lost=4)
    body.several.allowed = True
    before = body.weights()
    body.leaves.begin(whole=True)
    value = body.optimizer.step(body.closure)
    assert body.evaluations == 4
    assert body.weights() != before, "the optimizer had begun to update"
    assert value == body.net(body.x).pow(2).mean(), "the script sees the value of the last evaluation"
    assert not body.leaves.restore()
    assert body.weights() == before
    assert not body.optimizer.state_dict()["state"]
    assert body.optimizer.step(body.closure) == body.net(body.x).pow(2).mean(), "the rest of the body is harmless"
    assert (body.evaluations, body.weights()) == (5, before)


def test_error_names_the_remedy_if_updates_within_a_closure_were_not_seen_in_the_warm_up() -> None:
    body = Body(torch.optim.LBFGS)
    with pytest.raises(RuntimeError, match=r"step\(closure\) did not take place in .*several_backwards=True"):
        body.optimizer.step(body.closure)
    Body(torch.optim.SGD).optimizer.step(body.closure)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each copy that was made in the host's memory."""
    taken: list[int] = []
    take = HostCopy.take
    monkeypatch.setattr(HostCopy, "take", lambda self, tree: taken.append(bytes_of(tree)) or take(self, tree))
    return taken


def bytes_of(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def has(monkeypatch: pytest.MonkeyPatch, memory: int | None) -> None:
    """The tensors lie on a device with so much memory."""
    monkeypatch.setattr(host_copy, "_memory_of", lambda _device: memory)


@pytest.mark.parametrize("memory", [None, 1])
def test_snapshot_holds_nothing_that_changes_with_the_objects(memory, monkeypatch) -> None:
    has(monkeypatch, memory)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe")
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    tracked = {"net": net, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    scaler.scale(torch.ones(()))
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))

    def change() -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        schedule.step()

    def state() -> dict:
        return {name: obj.state_dict() for name, obj in tracked.items()}

    change()
    snapshot = Leaves(tracked)
    for _ in range(2):  # the second copy must not share memory with objects that keep the first one's tensors
        snapshot.begin(whole=True)
        expected = repr(state())
        change()
        scaler.unscale_(optimizer)
        assert repr(state()) != expected
        assert not snapshot.restore()
        assert repr(state()) == expected
        scaler.unscale_(optimizer)  # not "already called since the last update()"
        scaler.update()
        change()


def test_a_copy_on_the_host_takes_no_memory_of_the_device_to_be_put_back(on_host, monkeypatch) -> None:
    net = nn.Linear(4, 64)
    optimizer = torch.optim.Adam(net.parameters())
    tracked = {"net": net, "optimizer": optimizer}
    leaves = Leaves(tracked)

    def body() -> None:
        optimizer.zero_grad()
        net(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()

    body()
    nbytes = bytes_of(capture.capture(tracked))
    has(monkeypatch, int(nbytes / DEVICE_SHARE) + 1)
    leaves.begin(whole=True)
    assert not on_host
    has(monkeypatch, int((nbytes - 1) / DEVICE_SHARE))
    for _ in range(2):
        leaves.begin(whole=True)
        body()
    assert on_host == [nbytes] * 2
    at = [leaf.data_ptr() for leaf in pytree.tree_leaves(capture.capture(tracked)) if isinstance(leaf, torch.Tensor)]
    assert not leaves.restore()
    now = [leaf.data_ptr() for leaf in pytree.tree_leaves(capture.capture(tracked)) if isinstance(leaf, torch.Tensor)]
    assert now == at


class Pair:
    """Tracked by a script that makes one tensor of two."""

    def __init__(self) -> None:
        self.values = {"one": torch.zeros(3), "other": torch.ones(3)}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self.values)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.values = dict(state)


def test_entries_that_have_come_to_share_memory_are_put_back_apart(monkeypatch) -> None:
    has(monkeypatch, 1)
    pair = Pair()
    snapshot = Leaves({"pair": pair})
    snapshot.begin(whole=True)
    pair.values["one"] = pair.values["other"].add_(5)
    assert not snapshot.restore()
    assert [value.tolist() for value in pair.values.values()] == [[0.0] * 3, [1.0] * 3]


def test_a_card_copies_the_state_before_the_body_changes_it_and_no_page_locked_memory_is_taken_twice(
    card, monkeypatch
) -> None:
    has(monkeypatch, 1)
    pair = Pair()
    pair.values = {name: value.as_subclass(OnCard) for name, value in pair.values.items()}
    snapshot = Leaves({"pair": pair})
    for number in range(3):
        snapshot.begin(whole=True)
        for value in pair.values.values():
            value.copy_(torch.full((3,), 7.0 + number), non_blocking=True)
        assert card.queued > card.done, "the host goes on"
    assert len(card.page_locked) == 1
    assert not snapshot.restore()
    assert [value.tolist() for value in pair.values.values()] == [[8.0] * 3] * 2
