"""Samplers that scripts have already: torch's become functions of the position, others are replayed or refused."""

import itertools
import random
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from elastrain.data import LengthBuckets, Shuffled
from elastrain.data.options import order_of
from elastrain.data.order import Order
from elastrain.data.rng import Kept
from elastrain.data.sampling.bounded import MOST, PASSES, most_of
from elastrain_readers import Shards

DATASET = range(40)


def order(*, size: int | None = 8, **options: Any) -> Order:
    return order_of(DATASET, **{"global_batch_size": size, "seed": 3, "shuffle": None, "drop_last": False, **options})


def epoch_of(found: Order, epoch: int = 0) -> list[int]:
    steps = range(epoch * found.steps_per_epoch, (epoch + 1) * found.steps_per_epoch)
    return [i for step in steps for i in found.batch(step)]


@pytest.mark.parametrize(
    ("sampler", "of_epoch"),
    [
        (SequentialSampler(DATASET), lambda e: e == list(DATASET)),
        (RandomSampler(DATASET), lambda e: sorted(e) == list(DATASET)),
        (RandomSampler(DATASET, num_samples=90), lambda e: sorted(Counter(e).values()) == [2] * 30 + [3] * 10),
        (RandomSampler(DATASET, replacement=True, num_samples=30), lambda e: len(e) == 30 > len(set(e))),
        (SubsetRandomSampler([5, 7, 30]), lambda e: sorted(e) == [5, 7, 30]),
        (WeightedRandomSampler([0.0] * 39 + [1.0], 12), lambda e: e == [39] * 12),
        (WeightedRandomSampler([1.0] * 20 + [0.0] * 20, 20, replacement=False), lambda e: sorted(e) == list(range(20))),
    ],
    ids=lambda s: type(s).__name__,
)
def test_samplers_of_torch_keep_their_samples_in_any_process(sampler, of_epoch) -> None:
    found = order(sampler=sampler)
    assert of_epoch(epoch_of(found))
    torch.manual_seed(99)
    list(sampler)
    assert [epoch_of(order(sampler=sampler), e) for e in (0, 1)] == [epoch_of(found, e) for e in (0, 1)]


def test_the_seed_of_the_loader_determines_the_order() -> None:
    sampler = RandomSampler(DATASET)
    assert epoch_of(order(sampler=sampler)) == epoch_of(order()) == epoch_of(order(sampler=Shuffled(40, seed=3)))
    assert epoch_of(order(sampler=sampler, seed=4)) != epoch_of(order())


def test_batches_of_torchs_batch_sampler_are_global_batches() -> None:
    found = order(size=None, batch_sampler=BatchSampler(SequentialSampler(DATASET), 16, drop_last=False))
    assert (found.global_batch_size, found.steps_per_epoch) == (16, 3)
    assert [len(found.batch(step)) for step in range(4)] == [16, 16, 8, 16]
    found = order(size=None, batch_sampler=BatchSampler(RandomSampler(DATASET), 16, drop_last=True))
    assert found.steps_per_epoch == 2


class ByTorch(Sampler):
    """Draws from torch's default generator, as the samplers of other libraries do. Its ``indices`` are data."""

    def __init__(self) -> None:
        self.indices = [1, 2, 3]

    def __iter__(self):
        return iter(torch.randperm(40).tolist())


class ByAll(Sampler):
    def __iter__(self):
        order = list(DATASET)
        random.shuffle(order)
        return iter(np.random.permutation(order))


class ByItsGenerator(Sampler):
    def __init__(self) -> None:
        self.generator = torch.Generator()

    def __iter__(self):
        return iter(torch.randperm(40, generator=self.generator))


class ByEpoch(Sampler):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        return iter(random.Random(self.epoch).sample(DATASET, 30))


@pytest.mark.parametrize("kind", [ByTorch, ByAll, ByItsGenerator, ByEpoch])
def test_any_other_sampler_is_replayed_with_another_order_in_each_epoch(kind) -> None:
    found, again = order(sampler=kind()), order(sampler=kind())
    epochs = [epoch_of(found, e) for e in range(3)]
    assert len(set(map(tuple, epochs))) == 3
    assert all(len(set(e)) == len(e) for e in epochs)
    torch.manual_seed(5)
    assert [epoch_of(again, e) for e in (2, 0, 1)] == [epochs[2], *epochs[:2]], "not a function of the epoch"


def test_own_streams_are_unchanged_by_a_sampler_that_draws() -> None:
    with Kept():
        torch.manual_seed(1)
        expected = torch.rand(()).item()
        torch.manual_seed(1)
        epoch_of(order(sampler=ByTorch()))
        assert torch.rand(()).item() == expected


class OfSimilarLength(Sampler):
    """Batches in the way of group_by_length, of a size that the epoch does not change."""

    batch_size = 6

    def __iter__(self):
        shuffled = torch.randperm(40).tolist()
        return iter([sorted(shuffled[i : i + 6]) for i in range(0, 40, 6)])


def test_any_other_batch_sampler_is_replayed() -> None:
    found = order(size=None, batch_sampler=OfSimilarLength())
    assert (found.steps_per_epoch, found.global_batch_size) == (7, 6)
    assert sorted(epoch_of(found)) == sorted(epoch_of(found, 1)) == list(DATASET)
    assert found.batch(0) != found.batch(7)
    parts = [found.slice(6, rank, 3) for rank in range(3)]
    assert [p.weight for p in parts] == [2 / 4, 1 / 4, 1 / 4]


def test_error_names_the_way_out_if_a_sampler_cuts_by_rank() -> None:
    by_rank = DistributedSampler(DATASET, num_replicas=2, rank=0)
    for options in (
        {"sampler": by_rank},
        {"batch_sampler": BatchSampler(by_rank, 4, False), "size": None},
    ):
        with pytest.raises(ValueError, match=r"DistributedSampler cuts the data for a fixed number of ranks.*Leave it"):
            order(**options)


def test_error_names_the_sampler_if_it_is_not_deterministic() -> None:
    class Continues(Sampler):
        numbers = itertools.count()

        def __iter__(self):
            return iter([next(self.numbers) % 40 for _ in range(5)])

    with pytest.raises(ValueError, match=r"Continues is not deterministic.*set_epoch"):
        order(sampler=Continues())


class Endless(Sampler):
    """Begins the data set anew for ever."""

    def __init__(self, one: Any = 0, length: Any = None) -> None:
        self.one, self.length = one, length

    def __iter__(self):
        while True:
            yield self.one

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError
        return self.length


@pytest.mark.parametrize("argument", ["sampler", "batch_sampler"])
@pytest.mark.parametrize(
    ("length", "message"),
    [
        (None, r"Endless has yielded 4,194,304 indices and does not end: end it after one epoch, with __len__\(\)"),
        (40, r"Endless yields more than its len\(\), which is 40"),
        (sys.maxsize, r"len\(Endless\) is 9,2.* each rank reads it as a whole, at most 4,194,304: .*indices\("),
        (10**30, r"len\(Endless\) is 9,2.* each rank reads it as a whole"),
        (float("inf"), ".* does not end"),
    ],
)
def test_an_iterable_that_does_not_end_is_refused_by_name(argument, length, message) -> None:
    batches = argument == "batch_sampler"
    options = {"size": None} if batches else {}
    with pytest.raises(ValueError, match=rf"job\.dataloader\({argument}=…\): {message}"):
        order(**{argument: Endless([1] * 64 if batches else 1, length)}, **options)


def test_batches_without_samples_end_too() -> None:
    with pytest.raises(ValueError, match="does not end"):
        order(batch_sampler=Endless([]), size=None)


def test_an_epoch_has_the_samples_that_come_if_its_length_promises_more() -> None:
    class Short(Sampler):
        def __iter__(self):
            return iter(range(7))

        def __len__(self) -> int:
            return 40

    assert epoch_of(order(sampler=Short())) == list(range(7))


def test_an_epoch_may_be_longer_than_the_bound_if_the_data_set_is() -> None:
    assert [most_of(samples) for samples in (None, 40, 10**6)] == [MOST, MOST, PASSES * 10**6]


@pytest.mark.parametrize("sampler", [iter([1, 2]), (i for i in (1, 2)), itertools.cycle([1, 2]), map(int, "12")])
def test_a_generator_is_refused_since_it_has_one_epoch(sampler) -> None:
    with pytest.raises(TypeError, match=r"can be read only once: give an object whose __iter__\(\) begins anew"):
        order(sampler=sampler)


def test_files_of_shards_that_do_not_end_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Shards\.tar\(files\): 4,194,304 files and more"):
        Shards.tar(itertools.cycle(["a.tar"]), [1])


def test_error_names_the_epoch_if_it_has_another_length() -> None:
    class Grows(ByEpoch):
        def __iter__(self):
            return iter(range(10 + self.epoch))

    found = order(sampler=Grows())
    with pytest.raises(ValueError, match="length of Grows is 11 in epoch 1 and 10 in epoch 0"):
        epoch_of(found, 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"sampler": 3},
            TypeError,
            "int is neither an iterable of indices nor has the methods of",
        ),
        ({"batch_sampler": 3, "size": None}, TypeError, "elastrain.data.BatchSampler"),
        ({"sampler": ["a", "b"]}, TypeError, "must be a sequence of integers"),
        ({"sampler": RandomSampler(DATASET), "shuffle": True}, ValueError, "shuffle=True.: the sampler determines"),
        (
            {"batch_sampler": LengthBuckets([1], batch_size=1)},
            ValueError,
            "global_batch_size=….: batch_sampler",
        ),
        ({"batch_sampler": LengthBuckets([1], batch_size=1), "size": None, "drop_last": True}, ValueError, "drop_last"),
        ({"size": None}, ValueError, "give global_batch_size=…"),
    ],
)
def test_error_names_the_argument_if_options_contradict(options, error, message) -> None:
    with pytest.raises(error, match=message):
        order(**options)


def test_a_data_set_in_shards_is_shuffled_by_shards() -> None:
    shards = Shards(["a", "b", "c", "d"], [20] * 4, lambda _: range(20), together=1, lanes=2)
    found = order_of(shards, global_batch_size=8, seed=3, shuffle=None, drop_last=False)
    assert epoch_of(found) == shards.shuffled(seed=3, global_batch_size=8).indices(0, 0, 80)
    assert len({i // 20 for i in found.slice(0, 0, 2).indices}) == 1, "a rank reads the shards of its lane"
    in_order = order_of(shards, global_batch_size=8, seed=3, shuffle=False, drop_last=False)
    assert epoch_of(in_order) == list(range(80))
