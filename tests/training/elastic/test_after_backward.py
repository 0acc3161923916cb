"""Sums after each backward, with both ranks as threads of the test."""

import pytest
import torch
from torch import nn

from elastrain.data.order import Order
from elastrain.elastic.commit import control
from elastrain.elastic.commit.vote import Vote, cast
from elastrain.elastic.state.kept import KeptGradients
from elastrain.elastic.strategies import buckets
from elastrain.elastic.strategies.replicated import Replicated

INPUTS = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Rank:
    """Two models of one rank, a part of :data:`INPUTS`, and the backwards of one loop body."""

    def __init__(self, communicator) -> None:
        torch.manual_seed(0)
        self.one, self.other = (nn.Linear(3, 2).double() for _ in range(2))
        self.way, self.communicator = Replicated(), communicator
        self.models = [self.way.wrap(net, {}) for net in (self.one, self.other)]
        order = Order(7, 7, shuffle=False)
        (self.part,) = order.micro_slices(0, communicator.rank, communicator.world_size)
        self.x = INPUTS[list(self.part.fetch)]
        self.way.begin_step()
        self.kept = KeptGradients({"one": self.one, "other": self.other})
        self.kept.begin_loop()
        self.kept.begin_step()

    def backward(self, loss: torch.Tensor, *, factor: float = 1.0) -> float:
        self.kept.put_aside(first=not self.kept.begun)
        self.way.backward(loss, loss, self.part, self.communicator, last=True)
        summed = cast(self.communicator, lambda: Vote((), loss=loss.item() * self.part.weight))
        assert not self.communicator.broken
        self.way.whole().scale_gradients(factor)
        self.kept.add()
        return summed.sums[control.LOSS]

    def gradients(self) -> list[torch.Tensor | None]:
        return [None if p.grad is None else p.grad.clone() for p in self.way.whole().parameters()]


def ranks(communicators) -> list[Rank]:
    """One after the other: they have the same seed."""
    return [Rank(communicator) for communicator in communicators]


def alone(*losses) -> list[torch.Tensor | None]:
    """The gradients of the sum of ``losses(rank)`` over the whole batch, in one process."""
    rank = type("Alone", (), {})()
    torch.manual_seed(0)
    rank.one, rank.other = (nn.Linear(3, 2).double() for _ in range(2))
    rank.models, rank.x = [rank.one, rank.other], INPUTS
    sum(loss(rank) for loss in losses).backward()
    return [p.grad for net in rank.models for p in net.parameters()]


def of_one(rank) -> torch.Tensor:
    return rank.models[0](rank.x).pow(2).mean()


def of_both(rank) -> torch.Tensor:
    return rank.models[1](rank.models[0](rank.x).tanh() @ torch.ones(2, 3).double()).pow(2).mean()


def same(found, expected) -> None:
    assert [g is None for g in found] == [g is None for g in expected]
    for one, other in zip(found, expected, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_second_backward_adds_to_gradients_that_are_summed_already(connect, each) -> None:
    def on(rank):
        losses = [rank.backward(of_one(rank)), rank.backward(of_both(rank))]
        return rank.gradients(), losses

    results = each(on, ranks(connect(3)))
    for gradients, losses in results:
        same(gradients, alone(of_one, of_both))
        assert losses == results[0][1]


def test_parameters_that_no_rank_has_reached_have_no_gradient(pair, each) -> None:
    def on(rank):
        rank.backward(of_one(rank))
        return rank.gradients()

    for gradients in each(on, ranks(pair)):
        same(gradients, alone(of_one))
        assert gradients[2] is None


def test_the_mean_is_over_all_samples_if_one_rank_has_reached_a_parameter_and_another_has_not(pair, each) -> None:
    def on(rank):
        rank.backward(of_both(rank) if rank.communicator.rank else of_one(rank))
        return rank.part.weight, rank.gradients(), rank.x

    weight, gradients, x = each(on, ranks(pair))[1]
    torch.manual_seed(0)
    rank = type("Alone", (), {})()
    rank.models, rank.x = [nn.Linear(3, 2).double() for _ in range(2)], x
    (of_both(rank) * weight).backward()
    torch.testing.assert_close(gradients[2], rank.models[1].weight.grad, rtol=0, atol=1e-12)


def test_gradients_are_the_same_if_they_travel_in_several_buckets(connect, each, monkeypatch) -> None:
    monkeypatch.setattr(buckets, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)

    def on(rank):
        rank.backward(of_both(rank))
        return rank.gradients()

    for gradients in each(on, ranks(connect(2))):
        same(gradients, alone(of_both))


def test_error_names_the_remedy_if_a_loss_reaches_no_model(connect) -> None:
    (communicator,) = connect(1)
    rank = Rank(communicator)
    with pytest.raises(RuntimeError, match=r"depends on no parameter of the models given to job\.wrap"):
        rank.backward(torch.ones((), requires_grad=True) * 2)


def test_error_names_the_argument_if_several_models_exclude_it() -> None:
    with pytest.raises(ValueError, match=r"job\.wrap\(mixed_precision=…\): belongs to DDP"):
        Replicated().wrap(nn.Linear(2, 2), {"mixed_precision": object()})
    way = Replicated()
    way.wrap(nn.Linear(2, 2), {"find_unused_parameters": True})
    way.wrap(nn.Linear(2, 2), {"bucket_cap_mb": 5})
    with pytest.raises(ValueError, match="use sparse=False"):
        way.wrap(nn.Embedding(2, 2, sparse=True), {})


def test_no_rank_is_a_learner_if_there_are_several_models() -> None:
    way = Replicated()
    way.wrap(nn.Linear(2, 2), {})
    assert way.whole().learner is not None
    way.wrap(nn.Linear(2, 2), {})
    assert way.whole().learner is None


def test_a_factor_leaves_the_gradients_of_earlier_backwards_alone(connect) -> None:
    rank = Rank(*connect(1))
    rank.backward(of_one(rank))
    rank.backward(of_one(rank), factor=0.5)
    same(rank.gradients(), alone(of_one, lambda r: 0.5 * of_one(r)))
