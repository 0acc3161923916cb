"""A replicated model in exchangeable generations, with both ranks as threads of the test."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.strategies.replicated import Replicated, ReplicatedModule


class TwoTowers(nn.Module):
    """Its gradients come in another order than its parameters were created."""

    def __init__(self) -> None:
        super().__init__()
        self.late, self.early = nn.Linear(3, 3), nn.Linear(3, 3)
        self.flipped = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.early(self.late(x)) if self.flipped else self.late(self.early(x))


def warmed_up(*, flipped: bool = False, **options: object) -> ReplicatedModule:
    torch.manual_seed(0)
    model = ReplicatedModule(TwoTowers(), **options)
    model.module.flipped = flipped
    model(torch.ones(2, 3)).sum().backward()
    model.detach()
    model.module.flipped = False
    return model


def gradient(model: ReplicatedModule, scale: float) -> torch.Tensor:
    model.zero_grad()
    loss = model(torch.ones(2, 3)).sum() * scale
    backward(model, loss)
    grad = model.module.early.weight.grad
    assert grad is not None
    return grad.clone()


def backward(model: ReplicatedModule, loss: torch.Tensor) -> None:
    """A backward with sums; a model that is not attached yet is alone."""
    model.begin_backward()
    loss.backward()
    if model.communicator is not None:
        model.end_backward(model.communicator)


def test_gradients_are_summed_over_the_group_in_the_same_buckets_as_before(pair, each) -> None:
    models = [warmed_up(), warmed_up()]
    assert models[0].layout == models[1].layout != 0
    cut = [m.buckets for m in models]
    alone = gradient(warmed_up(), 1.0)

    def rank(c: Communicator) -> torch.Tensor:
        models[c.rank].attach(c, keep=True)
        return gradient(models[c.rank], c.rank + 1.0)

    for summed in each(rank, pair):
        torch.testing.assert_close(summed, 3 * alone)
    assert [m.buckets for m in models] == cut


@pytest.mark.parametrize(("options", "views"), [({}, True), ({"gradient_as_bucket_view": False}, False)])
def test_gradients_are_views_of_the_buckets_by_default(connect, options, views) -> None:
    model = warmed_up(**options)
    model.attach(*connect(1), keep=True)
    gradient(model, 1.0)
    early, late = (layer.weight.grad.untyped_storage().data_ptr() for layer in (model.module.early, model.module.late))
    assert (early == late) == views


@pytest.mark.parametrize("set_to_none", [True, False])
def test_micro_batches_add_up_in_views_for_both_ways_of_clearing_gradients(set_to_none) -> None:
    model = warmed_up()
    alone = gradient(model, 1.0)
    for _ in range(2):  # the second time gradients are views from the start if they were not set to None
        model.zero_grad(set_to_none=set_to_none)
        model(torch.ones(2, 3)).sum().backward()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        torch.testing.assert_close(model.module.early.weight.grad, 2 * alone)


def test_sparse_gradients_are_summed_like_any_others(pair, each) -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.table(x))

    def made() -> ReplicatedModule:
        torch.manual_seed(0)
        model = ReplicatedModule(Sparse())
        model(torch.tensor([0])).sum().backward()
        model.detach()
        return model

    models = [made(), made()]
    assert not any(m.learner for m in models)

    def rank(c: Communicator) -> list[torch.Tensor]:
        model = models[c.rank]
        model.attach(c, keep=False)
        for _ in range(3):
            model.zero_grad()
            loss = model(torch.tensor([2, 3 + c.rank])).sum()
            model.begin_backward()
            loss.backward()
            model.end_backward(c)
        table = model.module.table.weight.grad
        return [table.to_dense(), model.module.out.weight.grad]

    (table, out), (other_table, other_out) = each(rank, pair)
    row = models[0].module.out.weight[0].detach()
    torch.testing.assert_close(table[2:5], torch.stack([2 * row, row, row]))
    torch.testing.assert_close(table, other_table)
    torch.testing.assert_close(out, other_out)


def test_gradients_stay_local_before_the_first_generation() -> None:
    model = warmed_up()
    torch.testing.assert_close(gradient(model, 2.0), 2 * gradient(warmed_up(), 1.0))


def test_every_group_can_be_exchanged_for_another(connect, each) -> None:
    models = [warmed_up() for _ in range(3)]
    alone = gradient(warmed_up(), 1.0)
    for number, size in enumerate([2, 3, 1, 2], start=1):

        def rank(c: Communicator) -> torch.Tensor:
            models[c.rank].attach(c, keep=True)
            return gradient(models[c.rank], 1.0)

        for summed in each(rank, connect(size, number)):
            torch.testing.assert_close(summed, size * alone)


def test_the_same_step_can_be_repeated_after_a_group_broke(pair, connect, each) -> None:
    models = [warmed_up(), warmed_up()]
    models[0].attach(pair[0], keep=True)
    pair[1].abort("lost")
    gradient(models[0], 1.0)
    assert pair[0].broken

    def rank(c: Communicator) -> torch.Tensor:
        models[c.rank].attach(c, keep=True)
        return gradient(models[c.rank], 1.0)

    alone = gradient(warmed_up(), 1.0)
    for summed in each(rank, connect(2, 2)):
        torch.testing.assert_close(summed, 2 * alone)


def test_gradients_are_summed_if_parameters_may_be_unused(pair, each) -> None:
    models = [warmed_up(find_unused_parameters=True) for _ in range(2)]
    alone = gradient(warmed_up(), 1.0)

    def rank(c: Communicator) -> list[torch.Tensor]:
        models[c.rank].attach(c, keep=False)
        return [gradient(models[c.rank], 1.0)]

    for (summed,) in each(rank, pair):
        torch.testing.assert_close(summed, 2 * alone)


def test_a_gradient_of_an_earlier_micro_batch_is_summed_if_the_last_one_does_not_reach_it(pair, each) -> None:
    class Half(TwoTowers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.early(x) if self.flipped else super().forward(x)

    def rank(c: Communicator) -> list[torch.Tensor | None]:
        model = ReplicatedModule(Half(), find_unused_parameters=True)
        model.module.load_state_dict(state)
        model.attach(c, keep=False)
        for model.module.flipped in (False, True):
            model.put_gradients_back()
            loss = model(torch.ones(2, 3)).sum()
            if model.module.flipped:
                backward(model, loss)
            else:
                loss.backward()
                model.put_gradients_aside()
        return [p.grad for p in model.module.parameters()]

    alone, state = Half(), Half().state_dict()
    alone.load_state_dict(state)
    for alone.flipped in (False, True):
        alone(torch.ones(2, 3)).sum().backward()
    for gradients in each(rank, pair):
        for mine, p in zip(gradients, alone.parameters(), strict=True):
            torch.testing.assert_close(mine, 2 * p.grad)


def test_ranks_have_the_same_buckets_if_gradients_came_in_another_order_on_one_rank(pair, each) -> None:
    models = [warmed_up(), warmed_up(flipped=True)]
    assert models[0].layout == models[1].layout
    alone = gradient(warmed_up(), 1.0)

    def rank(c: Communicator) -> list[torch.Tensor]:
        model = models[c.rank]
        model.attach(c, keep=True)
        return [gradient(model, 1.0) for _ in range(3)]

    for sums in each(rank, pair):
        for summed in sums:
            torch.testing.assert_close(summed, 2 * alone)


def test_gradients_are_summed_once_if_a_forward_before_has_had_no_backward(pair, each) -> None:
    models = [warmed_up(find_unused_parameters=True) for _ in range(2)]
    alone = gradient(warmed_up(), 1.0)
    for model in models:
        model(torch.ones(2, 3))  # a forward whose backward never comes

    def rank(c: Communicator) -> list[int]:
        model, sums = models[c.rank], []
        model.attach(c, keep=False)
        sum_together, sum_bucket = c.sum_together, c.sum_bucket
        c.sum_together = lambda *buffers, **options: sums.append(len(buffers)) or sum_together(*buffers, **options)
        c.sum_bucket = lambda *bucket: sums.append(1) or sum_bucket(*bucket)
        torch.testing.assert_close(gradient(model, 1.0), 2 * alone)
        return sums

    assert each(rank, pair) == [[1, 1]] * 2, "gradients; the parameters that any rank has reached"


def test_a_model_may_return_any_output() -> None:
    @dataclass
    class Output:
        logits: torch.Tensor
        note: str

    class Noted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> Output:
            return Output(self.layer(x), "of a class that torch does not know")

    model = ReplicatedModule(Noted())
    loss = model(torch.ones(2, 3)).logits.sum()
    loss.backward()
    assert model.module.layer.weight.grad is not None


def test_error_names_the_remedy_if_the_loss_does_not_depend_on_the_model(pair) -> None:
    model = warmed_up()
    model.attach(pair[0], keep=True)
    loss = torch.ones((), requires_grad=True) * 2
    model.begin_backward()
    loss.backward()
    with pytest.raises(RuntimeError, match="find_unused_parameters"):
        model.end_backward(pair[0])


@pytest.mark.parametrize("views", [True, False])
def test_a_learner_gets_the_gradients_of_the_others_and_computes_the_next_step(pair, each, views) -> None:
    models = [warmed_up(gradient_as_bucket_view=views), warmed_up(gradient_as_bucket_view=views)]
    assert all(m.learner for m in models)
    alone = gradient(warmed_up(), 1.0)

    def rank(c: Communicator) -> list[torch.Tensor]:
        model = models[c.rank]
        if c.rank == 1:
            model.learner.begin(c, receiving=False)
        model.attach(c, keep=True)
        if c.rank == 0:
            first = gradient(model, 2.0)
        else:
            model(torch.ones(2, 3)).sum()  # the forward of a loop body whose loss is ignored
            model.learner.finish()
            assert model.module.early.weight.grad is not None
            first = model.module.early.weight.grad.clone()
        return [first, gradient(model, c.rank + 1.0)]

    for looked_on, following in each(rank, pair):
        torch.testing.assert_close(looked_on, 2 * alone)
        torch.testing.assert_close(following, 3 * alone)


def test_no_rank_is_a_learner_if_parameters_may_be_unused() -> None:
    assert ReplicatedModule(TwoTowers(), find_unused_parameters=True).learner is None


def test_no_rank_is_a_learner_if_layers_communicate() -> None:
    assert Replicated().wrap(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3)), {}).learner is None


def test_error_names_the_remedy_if_the_wrapper_is_compiled() -> None:
    model = torch.compile(ReplicatedModule(TwoTowers()), backend="eager")
    with pytest.raises(RuntimeError, match=r"job\.wrap\(torch\.compile\(net\)\), or model\.compile\(\)"):
        model(torch.ones(2, 3))


def test_an_attribute_is_missing_if_the_wrapper_is_not_made_yet() -> None:
    """``copy`` and ``pickle`` look attributes up before there is any."""
    with pytest.raises(AttributeError, match="has no attribute 'update'"):
        _ = ReplicatedModule.__new__(ReplicatedModule).update
