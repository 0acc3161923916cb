"""DDP over exchangeable groups, with both ranks as threads of the test."""

import gc
from collections.abc import Iterator
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
    model.begin_backward()
    loss.backward()
    grad = model.module.early.weight.grad
    assert grad is not None
    return grad.clone()


def test_gradients_are_summed_over_the_group_and_ddp_is_kept_if_the_buckets_are_the_same(pair, each) -> None:
    models = [warmed_up(), warmed_up()]
    assert models[0].layout == models[1].layout != 0
    wrapped = [m._ddp for m in models]
    alone = gradient(warmed_up(), 1.0)

    def rank(c: Communicator) -> torch.Tensor:
        models[c.rank].attach(c, keep=True)
        return gradient(models[c.rank], c.rank + 1.0)

    for summed in each(rank, pair):
        torch.testing.assert_close(summed, 3 * alone)
    assert [m._ddp for m in models] == wrapped


@pytest.mark.parametrize(("options", "views"), [({}, True), ({"gradient_as_bucket_view": False}, False)])
def test_gradients_are_views_of_the_buckets_by_default(options, views) -> None:
    model = warmed_up(**options)
    gradient(model, 1.0)
    early, late = (layer.weight.grad.untyped_storage().data_ptr() for layer in (model.module.early, model.module.late))
    assert (early == late) == views


@pytest.mark.parametrize("set_to_none", [True, False])
def test_micro_batches_add_up_in_views_for_both_ways_of_clearing_gradients(set_to_none) -> None:
    model = warmed_up()
    alone = gradient(model, 1.0)
    for _ in range(2):  # the second time gradients are views from the start if they were not set to None
        model.zero_grad(set_to_none=set_to_none)
        with model.without_sums():
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
    assert not any(m.layout or m.learner for m in models), "every rank wraps anew"

    def rank(c: Communicator) -> list[torch.Tensor]:
        model = models[c.rank]
        model.attach(c, keep=False)
        for _ in range(3):
            model.zero_grad()
            loss = model(torch.tensor([2, 3 + c.rank])).sum()
            model.begin_backward()
            loss.backward()
            model.check_reached()
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


def test_no_generation_can_begin_with_the_buckets_if_ddp_has_collectives_of_its_own(pair, each) -> None:
    models = [warmed_up(find_unused_parameters=True) for _ in range(2)]
    assert [m.layout for m in models] == [0, 0]
    alone = gradient(warmed_up(), 1.0)

    def rank(c: Communicator) -> list[torch.Tensor]:
        models[c.rank].attach(c, keep=False)
        return [gradient(models[c.rank], 1.0)]

    for (summed,) in each(rank, pair):
        torch.testing.assert_close(summed, 2 * alone)


def test_all_ranks_wrap_anew_if_gradients_came_in_another_order_on_one_rank(pair, each) -> None:
    models = [warmed_up(), warmed_up(flipped=True)]
    assert models[0].layout != models[1].layout
    alone = gradient(warmed_up(), 1.0)

    def rank(c: Communicator) -> list[torch.Tensor]:
        model = models[c.rank]
        model.attach(c, keep=False)
        return [gradient(model, 1.0) for _ in range(3)]  # DDP rebuilds its buckets in rank 0's order

    for sums in each(rank, pair):
        for summed in sums:
            torch.testing.assert_close(summed, 2 * alone)


@pytest.fixture
def keeps_garbage() -> Iterator[None]:
    """Objects in cycles live on, as they do until the next collection."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("keeps_garbage")
def test_gradients_are_summed_once_if_the_former_ddp_still_expects_a_backward(pair, each) -> None:
    models = [warmed_up(find_unused_parameters=True) for _ in range(2)]
    alone = gradient(warmed_up(), 1.0)
    for model in models:
        model(torch.ones(2, 3))  # a forward whose backward never comes

    def rank(c: Communicator) -> list[int]:
        model, sums = models[c.rank], []
        model.attach(c, keep=False)
        sum_bucket = c.sum_bucket
        c.sum_bucket = lambda *bucket: sums.append(1) or sum_bucket(*bucket)
        torch.testing.assert_close(gradient(model, 1.0), 2 * alone)
        return sums

    assert each(rank, pair) == [[1, 1]] * 2, "gradients; the map of the parameters in use"


def test_a_model_may_return_any_output_that_ddp_accepts() -> None:
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
        model.check_reached()


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_evaluation_runs_through_the_model_itself(mode) -> None:
    model = warmed_up()
    hits: list[int] = []
    model._ddp.register_forward_hook(lambda *_: hits.append(1))
    if mode == "eval":
        model.eval()(torch.ones(2, 3))
    else:
        with torch.no_grad():
            model(torch.ones(2, 3))
    assert not hits


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


@pytest.mark.parametrize("options", [{"static_graph": True}, {"find_unused_parameters": True}])
def test_no_rank_is_a_learner_if_ddp_options_add_collectives(options) -> None:
    assert ReplicatedModule(TwoTowers(), **options).learner is None


def test_no_rank_is_a_learner_if_layers_communicate() -> None:
    assert Replicated().wrap(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3)), {}).learner is None


def test_error_names_the_remedy_if_the_wrapper_is_compiled() -> None:
    model = torch.compile(ReplicatedModule(TwoTowers()), backend="eager")
    with pytest.raises(RuntimeError, match=r"job\.wrap\(torch\.compile\(net\)\), or model\.compile\(\)"):
        model(torch.ones(2, 3))
