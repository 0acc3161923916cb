"""The permutation behind every shuffle: exact for any length, in memory of a batch, and without a visible pattern."""

import time
import tracemalloc
from itertools import pairwise, permutations
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import at_night
from elastrain.data.order import Order
from elastrain.data.sampling.permutation import LONGEST, Permutation, uniform

BILLION = 10**9
FIRST_TEN = [3, 9, 5, 4, 8, 0, 7, 6, 2, 1]
FIRST_OF_A_BILLION = [803833176, 279144303, 649967208]
THIRD_AND_FOURTH = [0.6375050155060373, 0.19271771778686586]
SIGMAS = 5
"""A statistic may lie this far from its mean: by chance, once in three million."""


def whole(length: int, *words: object) -> np.ndarray:
    return Permutation(length, *words)(np.arange(length))


def chi_square(observed: np.ndarray) -> float:
    """Distance of counts from equal ones, in standard deviations of a uniform choice."""
    expected = observed.sum() / observed.size
    freedom = observed.size - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5


@given(st.integers(1, 3000), st.integers(), st.integers(0, 50))
def test_every_value_comes_once_for_any_length(length, seed, epoch) -> None:
    assert sorted(whole(length, seed, epoch)) == list(range(length))


@given(st.integers(1, LONGEST), st.data())
def test_values_are_distinct_and_in_range_for_long_lengths(length, data) -> None:
    count = min(length, 200)
    start = data.draw(st.integers(0, length - count))
    values = Permutation(length, 0)(np.arange(start, start + count))
    assert len(set(values.tolist())) == count
    assert values.min() >= 0
    assert values.max() < length


@given(st.integers(1, 10**12), st.data())
def test_a_value_does_not_depend_on_the_run_in_which_it_is_asked_for(length, data) -> None:
    positions = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    one = Permutation(length, 3, 1)
    assert one(np.array(positions)).tolist() == [int(one(np.array([p]))[0]) for p in positions]


def test_values_stay_the_same_in_every_version() -> None:
    """A resumed job goes on in the order in which it began."""
    assert Permutation(10, 0, "order", 0, 0)(np.arange(10)).tolist() == FIRST_TEN
    assert Permutation(BILLION, 0, "order", 0, 0)(np.arange(3)).tolist() == FIRST_OF_A_BILLION
    assert uniform(2, 4, 0).tolist() == THIRD_AND_FOURTH


@pytest.mark.parametrize("length", [3, 4])
def test_all_permutations_are_equally_frequent(length) -> None:
    numbers = {p: i for i, p in enumerate(permutations(range(length)))}
    drawn = [numbers[tuple(whole(length, seed).tolist())] for seed in range(200 * factorial(length))]
    assert abs(chi_square(np.bincount(drawn, minlength=factorial(length)))) < SIGMAS


@pytest.mark.parametrize("length", [9, *at_night(16, 20)])
def test_positions_pairs_inversions_and_parity_are_those_of_random_permutations(length) -> None:
    count = 4000
    drawn = np.stack([whole(length, 1, epoch) for epoch in range(count)])
    by_position = np.stack([np.bincount(column, minlength=length) for column in drawn.T])
    assert abs(chi_square(by_position)) < SIGMAS
    neighbours = (drawn[:, 1:] - drawn[:, :-1]) % length
    assert abs(chi_square(np.bincount(neighbours.ravel(), minlength=length)[1:])) < SIGMAS
    above = np.triu_indices(length, 1)
    inversions = (drawn[:, above[0]] > drawn[:, above[1]]).sum(1)
    spread = (length * (length - 1) * (2 * length + 5) / 72) ** 0.5
    assert abs(inversions.mean() - length * (length - 1) / 4) < SIGMAS * spread / count**0.5
    assert abs((inversions % 2).mean() - 0.5) < SIGMAS * 0.5 / count**0.5, "only even or only odd permutations"


def test_batches_of_a_large_set_are_uniform_and_unrelated_from_epoch_to_epoch() -> None:
    order = Order(BILLION, 4096, seed=5)
    batches = np.array([order.batch(epoch * order.steps_per_epoch) for epoch in range(8)])
    assert abs(chi_square(np.histogram(batches, bins=64, range=(0, BILLION))[0])) < SIGMAS
    for one, other in pairwise(batches):
        assert abs(np.corrcoef(one, other)[0, 1]) < SIGMAS / 64
    assert abs(np.corrcoef(batches[0][:-1], batches[0][1:])[0, 1]) < SIGMAS / 64


def test_an_order_of_a_billion_samples_needs_memory_and_time_of_a_batch() -> None:
    order = Order(BILLION, 1024, seed=1)
    tracemalloc.start()
    try:
        began = time.process_time()
        for step in range(100):
            order.slice(step * 9000, 1, 2)
        seconds = (time.process_time() - began) / 100
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert seconds < 0.05, "a permutation of all indices would take seconds"


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40))
def test_uniform_numbers_belong_to_their_position(start, one, other) -> None:
    together = uniform(start, start + one + other, 7, "x")
    assert together.tolist() == [
        *uniform(start, start + one, 7, "x"),
        *uniform(start + one, start + one + other, 7, "x"),
    ]
    assert ((together >= 0) & (together < 1)).all()


@pytest.mark.parametrize("length", [0, -1, LONGEST + 1])
def test_error_names_the_length_if_it_is_out_of_range(length) -> None:
    with pytest.raises(ValueError, match=f"length: {length}"):
        Permutation(length)
