"""Samplers by position: the same from any cut, with the frequencies that they promise."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.data import Drawn, InOrder, LengthBuckets, Shuffled, Weighted
from elastrain.data.order import Order

LENGTHS = np.random.default_rng(0).integers(1, 60, 211).tolist()
SAMPLERS = [
    InOrder(50),
    Shuffled(50, seed=1),
    Shuffled([3, 1, 4, 15, 9, 2, 6], seed=1),
    Shuffled(20, seed=1, samples=53),
    Shuffled(50, seed=1, samples=13),
    Drawn(50, seed=1, samples=70),
    Weighted([0.0, 1, 2, 3, 0], 60, seed=1),
    Weighted(np.arange(60), 40, seed=1, replacement=False),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: f"{type(s).__name__}-{len(s)}")
@given(st.integers(0, 3), st.data())
def test_an_epoch_is_the_same_however_it_is_cut(sampler, epoch, data) -> None:
    whole = list(sampler.indices(epoch, 0, len(sampler)))
    assert len(whole) == len(sampler)
    start = data.draw(st.integers(0, len(sampler)))
    stop = data.draw(st.integers(start, len(sampler)))
    assert list(sampler.indices(epoch, start, stop)) == whole[start:stop]


@pytest.mark.parametrize("sampler", SAMPLERS[1:], ids=lambda s: f"{type(s).__name__}-{len(s)}")
def test_epochs_differ(sampler) -> None:
    assert list(sampler.indices(0, 0, len(sampler))) != list(sampler.indices(1, 0, len(sampler)))


@given(st.integers(1, 60), st.integers(1, 200), st.integers(0, 3))
def test_no_sample_is_shuffled_in_twice_before_all_others_came(population, samples, epoch) -> None:
    counts = Counter(Shuffled(population, samples=samples).indices(epoch, 0, samples))
    assert counts.total() == samples
    assert max(counts.values()) - min(counts[i] for i in range(population)) <= 1


def test_shuffled_is_the_order_of_a_loader_without_a_sampler() -> None:
    order, sampler = Order(50, 50, seed=7), Shuffled(50, seed=7)
    assert order.batch(3) == sampler.indices(3, 0, 50)


def test_samples_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.array([0.0, 1, 2, 3, 4, 0])
    counts = np.bincount(Weighted(weights, 100_000).indices(0, 0, 100_000), minlength=6)
    expected = 100_000 * weights / weights.sum()
    assert (abs(counts - expected) <= 5 * np.sqrt(expected)).all()
    even = np.bincount(Drawn(10, samples=100_000).indices(0, 0, 100_000))
    assert (abs(even - 10_000) <= 500).all()


def test_samples_without_replacement_come_once_and_the_first_in_proportion_to_its_weight() -> None:
    weights = np.array([1.0, 2, 0, 5])
    sampler = Weighted(weights, 3, replacement=False)
    drawn = [sampler.indices(epoch, 0, 3) for epoch in range(4000)]
    assert all(sorted(d) == [0, 1, 3] for d in drawn)
    first = np.bincount([d[0] for d in drawn], minlength=4)
    second = np.bincount([d[1] for d in drawn], minlength=4)
    p = weights / 8
    then = [sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i and p[j]) for i in range(4)]
    for counts, expected in ((first, 4000 * p), (second, 4000 * np.array(then))):
        assert (abs(counts - expected) <= 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("size", [{"batch_size": 8}, {"max_tokens": 240}])
def test_every_sample_is_once_in_the_batches_of_an_epoch_among_samples_of_similar_length(size) -> None:
    sampler = LengthBuckets(LENGTHS, buckets=10, seed=2, **size)
    for epoch in range(3):
        batches = [sampler.batch(epoch, k) for k in range(len(sampler))]
        assert sorted(i for b in batches for i in b) == list(range(len(LENGTHS)))
        assert max(map(len, batches)) <= sampler.batch_size
        spread = [max(LENGTHS[i] for i in b) - min(LENGTHS[i] for i in b) for b in batches]
        assert max(spread) <= 12, "a batch has samples of several buckets"
        assert all(len(b) * max(LENGTHS[i] for i in b) <= size.get("max_tokens", 10**9) for b in batches)
        assert [LENGTHS[b[0]] for b in batches] != sorted(LENGTHS[b[0]] for b in batches), "batches are not shuffled"
    assert sampler.batch(0, 0) != sampler.batch(1, 0)


@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 7), st.integers(0, 7))
def test_batches_of_different_sizes_are_exact_at_any_world_size(step, world, micro_batch_size, micro_batches) -> None:
    sampler = LengthBuckets(LENGTHS, max_tokens=200)
    cut = {"micro_batch_size": micro_batch_size or None} if not micro_batches else {"micro_batches": micro_batches}
    order = Order(sampler.samples, sampler.batch_size, shuffle=False, batch_sampler=sampler, **cut)
    parts = [p for rank in range(world) for p in order.micro_slices(step, rank, world)]
    epoch, k = divmod(step, len(sampler))
    assert [i for p in parts for i in p.indices] == sampler.batch(epoch, k) == list(order.batch(step))
    assert sum(p.weight for p in parts) == pytest.approx(1)
    assert all(p.weight == pytest.approx(len(p.indices) / len(sampler.batch(epoch, k))) for p in parts)
    assert order.samples_before(order.steps_per_epoch * 2) == 2 * len(LENGTHS)
    assert order.samples_before(step) <= order.samples_before(step + 1)


def test_error_names_the_sampler_if_it_breaks_its_contract() -> None:
    class Wrong:
        batch_size, samples = 2, 4

        def __len__(self) -> int:
            return 4

        def indices(self, epoch: int, start: int, stop: int) -> list:
            return [1.5] * (stop - start) if epoch else [0]

        def batch(self, epoch: int, number: int) -> list[int]:
            return [0, 1, 2] if epoch else []

    order = Order(4, 2, sampler=Wrong(), shuffle=False)
    with pytest.raises(ValueError, match=r"Wrong\.indices\(0, 0, 2\) has 1 indices, must have 2"):
        order.batch(0)
    with pytest.raises(TypeError, match=r"Wrong: .* must be a sequence of integers"):
        order.batch(2)
    order = Order(4, 2, batch_sampler=Wrong(), shuffle=False)
    for step in (0, 4):
        with pytest.raises(ValueError, match=r"Wrong\.batch\(\d, 0\) has \d samples, must have 1 to 2"):
            order.slice(step, 0, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shuffled(0), "population: 0"),
        (lambda: Drawn(5, samples=0), "samples: 0"),
        (lambda: Weighted([1, -1], 1), "weights: .*none negative"),
        (lambda: Weighted([0, 0], 1), "only 0 samples have a weight above 0"),
        (lambda: Weighted([0, 1, 1], 3, replacement=False), "samples: 3: only 2 samples"),
        (lambda: LengthBuckets([1]), "either batch_size=… or max_tokens=…"),
        (lambda: LengthBuckets([], batch_size=1), "lengths: has 0 samples"),
        (lambda: LengthBuckets([5, 9], max_tokens=8), "max_tokens: 8: the longest sample has 9"),
        (lambda: LengthBuckets([5], batch_size=1, buckets=0), "buckets: 0"),
    ],
)
def test_error_names_the_argument_if_a_sampler_cannot_be_made(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()
