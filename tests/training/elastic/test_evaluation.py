"""``job.evaluate()`` and ``job.all_reduce()`` in one process, with ranks that are threads."""

import itertools
import random
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, SequentialSampler, TensorDataset

from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order
from elastrain.data.share import Place
from elastrain.elastic import reduction
from elastrain.elastic.body.evaluation import Batches, Evaluation
from elastrain.elastic.group.ending import Once

PATIENCE = 30.0


class Group:
    """Ranks that are threads. ``sizes``: world size of each round; a rank that has no place any more leaves."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.rows: list[dict[int, bytes]] = [{} for _ in range(100)]
        self.barriers = [threading.Barrier(self.size(i)) for i in range(100)]

    def size(self, number: int) -> int:
        return self.sizes[min(number, len(self.sizes) - 1)]

    def run(self, evaluate: Callable[["Member"], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.size(0)) as pool:
            return list(pool.map(evaluate, [Member(self, rank) for rank in range(self.size(0))], timeout=PATIENCE))


class Left(Exception):
    """The rank is not in the next generation."""


class Member:
    """One rank of it."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank, self.round, self.computed, self.once = group, rank, 0, 0, Once()

    @property
    def place(self) -> Place:
        size = self.group.size(self.round)
        return Place(size, self.rank, size)

    def meets(self) -> bool:
        if self.rank >= self.group.size(self.round):
            raise Left
        return True

    def computes(self) -> None:
        self.computed += 1

    def exchange(self, _kind: Any, mine: bytes) -> list[bytes]:
        self.meets()
        rows = self.group.rows[self.round]
        rows[self.rank] = mine
        self.group.barriers[self.round].wait(PATIENCE)
        self.round += 1
        return [rows[rank] for rank in sorted(rows)]


def evaluated(loader: Any, fn: Callable[[Any], Any], sizes: Sequence[int] = (1,), modules: Sequence[nn.Module] = ()):
    """The sums of each rank that is left."""

    def one(member: Member) -> Any:
        try:
            return Evaluation(Batches(loader), fn, modules).run(member)
        except Left:
            return None

    return [result for result in Group(sizes).run(one) if result is not None]


class Numbers(Dataset):
    """Samples of which each adds ``10**-index``-like terms; the order of the additions shows in the sum."""

    def __init__(self, length: int) -> None:
        self.values = torch.randn(length, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 1e8

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.values[index]


def count(batch: Any) -> dict[str, Any]:
    index, values = batch
    return {
        "sum": values.sum(),
        "count": len(index),
        "mean": (values.mean(), len(index)),
        "seen": torch.bincount(index, minlength=23),
    }


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (8,), (3, 3, 2), (4, 1), (2, 3, 3, 1)])
def test_each_sample_counts_once_and_the_sums_have_the_same_bits_at_any_size(sizes):
    loader = DataLoader(Numbers(23), batch_size=4)
    if sizes == (2, 3, 3, 1):
        sizes = (3, 3, 2, 1)
    (alone,) = evaluated(loader, count)
    assert alone["count"] == 23
    assert alone["seen"].tolist() == [1] * 23
    assert alone["mean"] == pytest.approx(Numbers(23).values.mean().item(), rel=1e-12)
    for result in evaluated(loader, count, sizes):
        assert {k: v for k, v in result.items() if k != "seen"} == {k: v for k, v in alone.items() if k != "seen"}
        assert result["seen"].tolist() == alone["seen"].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_loader(workers):
    data = Numbers(23)
    own = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 5, drop_last=True), num_workers=workers)
    ours = ElasticLoader(data, Order(23, 5, shuffle=False, drop_last=True), num_workers=workers)
    plain = [len(index) for index, _ in own]
    for loader in (own, ours):
        (result,) = evaluated(loader, lambda batch: {"sizes": len(batch[0]) ** 2, "batches": 1})
        assert result == {"sizes": sum(n**2 for n in plain), "batches": len(plain)}


class Noisy(Dataset):
    """Draws from every generator for each sample."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return torch.rand(()).item() + random.random() + np.random.rand()


def test_random_numbers_depend_on_the_batch_and_the_streams_of_training_continue():
    def fn(batch: torch.Tensor) -> dict[str, Any]:
        return {"data": batch.sum(), "own": torch.rand(()).double() + random.random() + np.random.rand()}

    def drawn() -> tuple[float, ...]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())

    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    expected = drawn()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    (first,) = evaluated(DataLoader(Noisy(), batch_size=3), fn)
    assert drawn() == expected
    drawn()
    (second,) = evaluated(DataLoader(Noisy(), batch_size=3), fn)
    assert first == second


@pytest.mark.parametrize("fails", [False, True])
def test_models_are_in_eval_mode_without_gradients_and_back_in_their_own_afterwards(fails):
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    model[1].eval()  # frozen

    def fn(batch: Any) -> dict[str, Any]:
        assert not any(m.training for m in model.modules()) and not torch.is_grad_enabled()
        if fails:
            raise ZeroDivisionError
        return {"x": model(torch.ones(2, 1)).sum()}

    try:
        evaluated(DataLoader(Numbers(4), batch_size=2), fn, modules=[model])
    except ZeroDivisionError:
        assert fails
    assert [m.training for m in model.modules()] == [True, True, False]
    assert torch.is_grad_enabled()


class Endless:
    """Batches without an end."""

    def __iter__(self):
        return itertools.repeat([0] * 100_000)


class Longest:
    """As many batches as Python can count."""

    batch_size = samples = 4

    def __len__(self) -> int:
        return sys.maxsize


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        ([1, 2], "list: must be a torch.utils.data.DataLoader"),
        (DataLoader(Numbers(4), shuffle=True), "RandomSampler: the ranks share the batches of one order"),
        (
            DataLoader(Numbers(4), sampler=DistributedSampler(Numbers(4), 2, 0, shuffle=False)),
            "DistributedSampler: the ranks share the batches of one order: leave shuffle=True and sampler= out",
        ),
        (DataLoader(Numbers(4), batch_size=None), "no batches"),
        (DataLoader(TensorDataset(torch.ones(0))), "no samples"),
        (ElasticLoader(Numbers(4), Order(None, 2, shuffle=False)), "no length"),
        (DataLoader(Numbers(4), batch_sampler=Endless()), r"job\.evaluate\(loader\): Endless .* does not end"),
        (
            ElasticLoader(Numbers(4), Order(4, 2, shuffle=False, batch_sampler=Longest())),
            "its batch_sampler has 9,2.* batches, for data of 4 samples",
        ),
    ],
)
def test_a_loader_is_refused_by_name_if_ranks_cannot_share_its_batches(loader, text):
    with pytest.raises((TypeError, ValueError), match=text):
        Batches(loader)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (1.0, r"must return a dict of numbers, tensors or pairs \(value, weight\), not float"),
        ({"top1": "x"}, "'top1': str is neither a number nor a tensor"),
        ({"top1": (1, 2, 3)}, r"'top1': a tuple of 3; must be \(value, weight\)"),
        ({"top1": torch.ones(1, dtype=torch.complex64)}, "'top1': a tensor of torch.complex64"),
    ],
)
def test_a_result_is_refused_by_name_if_it_cannot_be_summed(returned, text):
    with pytest.raises(TypeError, match=text):
        evaluated(DataLoader(Numbers(4)), lambda _: returned)


def test_a_shape_that_changes_between_batches_is_refused_with_both():
    with pytest.raises(ValueError, match=r"'x': shape \(1,\) of batch 1, \(2,\) before"):
        evaluated(DataLoader(Numbers(3), batch_size=2), lambda batch: {"x": batch[1]})


def test_all_ranks_fail_if_their_data_sets_differ():
    def one(member: Member) -> str:
        with pytest.raises(ValueError, match="rank 0 has 3 batches of 5 samples, rank 1 3 of 6") as raised:
            Evaluation(Batches(DataLoader(Numbers(5 + member.rank), batch_size=2)), count, ()).run(member)
        return str(raised.value)

    assert len(set(Group([2]).run(one))) == 1


# -- job.all_reduce() ------------------------------------------------------------------------------------------------
def reduced(values: Sequence[Any], op: str) -> Any:
    results = [reduction.reduce([reduction.encode(v, op) for v in values], value) for value in values]
    assert len({repr(r) for r in results}) == 1
    return results[0]


@pytest.mark.parametrize(
    ("values", "op", "result"),
    [
        ([1, 2, 4], "sum", 7),
        ([1, 2, 4], "mean", 7 / 3),
        ([2.5, 0.5], "min", 0.5),
        ([True, True], "sum", 2),
        ([2**60, 2**60 + 1], "max", 2**60 + 1),
        ([1e16, 1.0, -1e16], "sum", 0.0),  # in rank order
    ],
)
def test_numbers_become_a_number(values, op, result):
    assert reduced(values, op) == result
    assert type(reduced(values, op)) is type(result)


def test_a_tensor_keeps_type_and_shape_and_is_not_changed():
    values = [torch.tensor([1.5, 2.0], dtype=torch.bfloat16), torch.tensor([1.0, 4.0], dtype=torch.bfloat16)]
    assert reduced(values, "sum").equal(torch.tensor([2.5, 6.0], dtype=torch.bfloat16))
    assert values[0].tolist() == [1.5, 2.0]
    assert reduced([torch.tensor([1, 2]), torch.tensor([2, 2])], "mean").tolist() == [1.5, 2.0]


def test_all_ranks_fail_alike_if_shapes_differ():
    rows = [reduction.encode(torch.ones(2), "sum"), reduction.encode(torch.ones(3), "sum")]
    for like in (torch.ones(2), torch.ones(3)):
        with pytest.raises(ValueError, match=r"rank 0 calls it for a sum of torch.float32 with shape \(2,\), rank 1 "):
            reduction.reduce(rows, like)


def test_only_its_elements_travel_of_a_view():
    assert len(reduction.encode(torch.zeros(10**6)[:2], "sum")) < 2000


def test_an_unknown_operation_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"op='avg'.: must be one of 'sum', 'mean', 'min', 'max'"):
        reduction.encode(1, "avg")
