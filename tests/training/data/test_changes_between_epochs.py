"""What a script changes between two epochs acts in the next one, on a rank that stays and on one that joins."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

from elastrain.data.facts import OrderFacts
from elastrain.data.loader import ElasticLoader
from elastrain.data.options import order_of
from elastrain.data.rng import Kept
from elastrain.data.share import Share

SAMPLES, BATCH, EPOCHS = 24, 4, 3
STEPS = SAMPLES // BATCH


class Data:
    """Sample i is i, and the version of the data set."""

    version = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.version


class Own:
    """Any iterable of indices."""

    first = 0

    def __iter__(self) -> Iterator[int]:
        return iter([self.first] * SAMPLES)


class ByPosition:
    """A sampler of the position."""

    first = 0

    def __len__(self) -> int:
        return SAMPLES

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        return [self.first] * (stop - start)


def only(epoch: int) -> list[float]:
    """Weights of which two samples can be drawn."""
    return [float(i // 2 == epoch) for i in range(SAMPLES)]


class Script:
    """One rank's, whose loops are epochs."""

    def __init__(self, sampler: str, changes: str, workers: int) -> None:
        self.data, self.changes = Data(), changes
        self.sampler: Any = {
            "random": lambda: RandomSampler(self.data),
            "weighted": lambda: WeightedRandomSampler(only(0), SAMPLES),
            "sequential": lambda: SequentialSampler(self.data),
            "own": Own,
            "by position": ByPosition,
        }[sampler]()
        read = partial(
            order_of, self.data, global_batch_size=BATCH, seed=3, shuffle=None, drop_last=False, sampler=self.sampler
        )
        self.loader = ElasticLoader(self.data, read, num_workers=workers, collate_fn=list)

    def begin(self, epoch: int, step: int) -> None:
        """The code before the loop of ``epoch``, and its beginning behind ``step`` steps."""
        if self.changes == "data set":
            self.data.version = epoch
        elif self.changes == "sampler":
            self.sampler.first, self.sampler.weights = 2 * epoch, only(epoch)
            self.sampler.replacement = epoch > 0 or isinstance(self.sampler, WeightedRandomSampler)
        self.loader.begin_loop(step, lambda order: order)

    def load(self, step: int, rank: int, ranks: int) -> list[tuple[int, int]]:
        self.loader.begin(step, Share(rank, ranks))
        found: list[tuple[int, int]] = self.loader.load()
        return found

    def facts(self, step: int) -> OrderFacts:
        return OrderFacts.of(self.loader.order).begin_epoch(self.loader.order, step)


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("changes", ["data set", "sampler", "nothing"])
@pytest.mark.parametrize("sampler", ["random", "weighted", "sequential", "own", "by position"])
@pytest.mark.parametrize("workers", [0, 1])
def test_each_epoch_is_that_of_the_script_at_its_beginning_if_it_changes_data_between(
    workers, sampler, changes, joins
) -> None:
    stays, joiner = Script(sampler, changes, workers), Script(sampler, changes, workers)
    with Kept():
        for epoch in range(EPOCHS):
            found: list[tuple[int, int]] = []
            stays.begin(epoch, epoch * STEPS)
            for step in range(epoch * STEPS, (epoch + 1) * STEPS):
                two = joins and step > STEPS + 2
                found += stays.load(step, 0, 1 + two)
                if not two:
                    continue
                if step == STEPS + 3 or step % STEPS == 0:  # it enters, or begins the next loop
                    joiner.begin(epoch, 0 if epoch == 1 else step)
                    joiner.load(0, 0, 1) if epoch == 1 else None  # its warm-up
                found += joiner.load(step, 1, 2)
                assert joiner.facts(step) == stays.facts(step), f"ranks would find other data in step {step}"
            assert {version for _, version in found} == {epoch if changes == "data set" else 0}
            indices = [index for index, _ in found]
            now = epoch if changes == "sampler" else 0
            if sampler in ("random", "sequential"):
                drawn_again = sampler == "random" and now > 0
                assert (len(set(indices)) < SAMPLES) == drawn_again
            else:
                assert set(indices) == ({2 * now, 2 * now + 1} if sampler == "weighted" else {2 * now})


def test_an_epoch_of_another_length_within_a_loop_is_refused_with_both_lengths() -> None:
    data = list(range(24))
    read = partial(order_of, data, global_batch_size=BATCH, seed=0, shuffle=None, drop_last=False)
    loader = ElasticLoader(data, read)
    loader.begin_loop(0, lambda order: order)
    loader.begin(0, Share(0, 1))
    data += range(4)
    with pytest.raises(ValueError, match=r"28 samples in epoch 1 and 24 in the epochs before, 7 and 6 steps"):
        loader.begin(STEPS, Share(0, 1))


@pytest.mark.parametrize("samples", [100, 2**20 + 5, 2**24])
def test_ranks_compare_a_digest_of_the_indices_and_read_at_most_a_million(samples) -> None:
    class Differs:
        def __init__(self, at: int) -> None:
            self.at, self.read = at, 0

        def __len__(self) -> int:
            return samples

        def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
            self.read += stop - start
            return np.arange(start, stop) * (np.arange(start, stop) != self.at)

    def digest(at: int) -> str:
        sampler = Differs(at)
        order = order_of(range(samples), global_batch_size=8, seed=0, shuffle=None, drop_last=False, sampler=sampler)
        found = OrderFacts.of(order).begin_epoch(order, 0).indices
        assert sampler.read == min(samples, 2**20)
        return found

    places = {0, 1, 50, samples - 1}
    assert len({digest(at) for at in places}) == len(places)
