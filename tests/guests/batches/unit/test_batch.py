"""The batch of a step, chosen by goodput, and the noise scale that it needs."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.api.settings import LearningRate
from elastrain_batches.goodput import choose, learning_rate_factor
from elastrain_batches.noise import LARGEST, SETTLED, NoiseScale, is_due, weight
from elastrain_resource.sizing.speedup import BATCH_REACH, Batches, Measured, learned

BASE = 32
times = st.floats(1e-4, 1e2)


def settled(noise: float, fixed: float, each: float, *, most: int = 4096, ranks: int = 4, factor: int = 1) -> list[int]:
    """The factors of a job that measures each batch that it takes, until it stays at one."""
    measured: dict[tuple[int, int], float] = {}
    taken = [factor]
    for _ in range(40):
        samples = taken[-1] * BASE
        measured[ranks, samples] = fixed + each * samples / ranks
        taken.append(decided(taken[-1], measured, noise=noise, most=most, ranks=ranks))
    return taken


def times_of(measured: dict[tuple[int, int], float]) -> tuple[Measured, ...]:
    return tuple(Measured(ranks, 1, seconds, samples) for (ranks, samples), seconds in measured.items())


def decided(factor: int, measured: dict[tuple[int, int], float], *, noise: float | None, most: int, ranks: int) -> int:
    return choose(factor=factor, ranks=ranks, measured=times_of(measured), batches=Batches(BASE, most, noise))


def test_the_batch_grows_by_measured_steps_to_the_best_goodput():
    taken = settled(noise=500, fixed=0.1, each=0.01)
    assert taken[:3] == [1, 2, 4]
    assert set(taken[3:]) == {4}  # with 8, a sample makes 0.70 of the progress, in 0.71 of the time


def test_the_batch_stays_the_scripts_if_the_noise_is_small():
    assert set(settled(noise=10, fixed=0.1, each=0.01)) == {1}


def test_a_larger_batch_that_makes_steps_longer_in_proportion_is_tried_once_and_given_up():
    assert settled(noise=1e5, fixed=0.0, each=0.01)[:3] == [1, 2, 1]
    assert set(settled(noise=1e5, fixed=0.0, each=0.01)[2:]) == {1}


def test_the_batch_shrinks_if_the_noise_is_smaller_now():
    assert settled(noise=20, fixed=0.1, each=0.01, factor=16)[-1] == 1


@pytest.mark.parametrize(("noise", "measured"), [(None, {(4, BASE): 1.0}), (1e4, {}), (1e4, {(2, BASE): 1.0})])
def test_the_batch_stays_if_the_noise_or_the_time_of_the_present_step_is_unknown(noise, measured):
    assert decided(1, measured, noise=noise, most=4096, ranks=4) == 1


def test_the_batch_is_within_the_bound_at_once_if_that_is_lower_now():
    assert decided(16, {}, noise=None, most=4 * BASE + 1, ranks=4) == 4


@examples(200)
@given(
    factor=st.integers(1, 64),
    most=st.integers(BASE, 128 * BASE),
    noise=st.floats(0.0, 1e7),
    ranks=st.integers(1, 64),
    others=st.dictionaries(st.tuples(st.integers(1, 64), st.integers(1, 64).map(BASE.__mul__)), times, max_size=8),
    seconds=times,
)
def test_the_batch_is_a_whole_multiple_within_bounds_and_grows_at_most_twofold_for_a_gain(
    factor, most, noise, ranks, others, seconds
):
    measured = {**others, (ranks, factor * BASE): seconds}
    after = decided(factor, measured, noise=noise, most=most, ranks=ranks)
    largest = most // BASE
    assert 1 <= after <= largest
    if factor > largest:
        return
    assert factor / BATCH_REACH <= after <= 2 * factor
    model, batches = learned(times_of(measured)), Batches(BASE, most, noise)

    def goodput(k: int) -> float:
        return model.goodput(ranks, k * BASE, spans=False, batches=batches)

    if after > factor:
        assert goodput(after) > 1.07 * goodput(factor)
    assert goodput(after) >= goodput(factor)


@examples(100)
@given(noise=st.floats(0, 1e6), fixed=st.floats(1e-3, 1), each=st.floats(1e-6, 1e-2), factor=st.integers(1, 64))
def test_the_batch_comes_to_rest(noise, fixed, each, factor):
    taken = settled(noise, fixed, each, factor=factor)
    assert len(set(taken[-20:])) == 1


def test_the_learning_rate_follows_the_rule_of_the_user():
    assert learning_rate_factor(LearningRate.LINEAR, 4, BASE, None) == 4
    assert learning_rate_factor(LearningRate.SQUARE_ROOT, 4, BASE, None) == 2
    assert learning_rate_factor(LearningRate.UNCHANGED, 4, BASE, 1e3) == 1
    assert learning_rate_factor(LearningRate.ADA_SCALE, 4, BASE, None) == 1
    assert learning_rate_factor(LearningRate.ADA_SCALE, 1, BASE, 1e3) == 1
    gain = learning_rate_factor(LearningRate.ADA_SCALE, 4, BASE, 96.0)
    assert gain == pytest.approx((96 / 32 + 1) / (96 / 128 + 1)), "AdaScale's (v + g) / (v / k + g)"


def expected_distance(factor: int, *, effective: float = math.inf, samples: float = math.inf) -> float:
    """E|x|² of SGD on |x|² / 2 with gradients of variance 400, by AdaScale, once it has made so much progress or taken
    so many samples."""
    square, made, taken = 100.0, 0.0, 0
    while made < effective and taken < samples:
        noise = 400.0 / square
        rate = 0.005 * learning_rate_factor(LearningRate.ADA_SCALE, factor, BASE, noise)
        square = (1 - rate) ** 2 * square + rate**2 * 400.0 / (factor * BASE)
        made += factor * BASE * Batches(BASE, 1 << 20, noise).efficiency(factor * BASE)
        taken += factor * BASE
    return square


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("progress", [5_000, 10_000, 20_000])
def test_equal_progress_is_an_equal_expected_loss_with_any_batch(factor, progress):
    assert expected_distance(factor, effective=progress) == pytest.approx(
        expected_distance(1, effective=progress), rel=0.1
    )
    assert expected_distance(factor, samples=progress) > 1.5 * expected_distance(1, samples=progress)


@pytest.mark.parametrize("sizes", [(16, 16, 16, 16), (4, 10, 18, 32)])
def test_the_noise_scale_of_gradients_with_a_known_one_is_found_from_parts_of_any_size(sizes):
    """Gradients of 50 dimensions, |G|² = 1, and a variance of 640 in all: the noise scale is 640 samples."""
    draw, scale, dimensions = random.Random(1), NoiseScale(), 50
    mean, spread = 1 / math.sqrt(dimensions), math.sqrt(640 / dimensions)
    for step in range(3000):
        parts = [[draw.gauss(mean, spread / math.sqrt(n)) for _ in range(dimensions)] for n in sizes]
        whole = [sum(n * p[i] for n, p in zip(sizes, parts, strict=True)) / 64 for i in range(dimensions)]
        small = sum(sum(x * x for x in p) for p in parts) / 4
        inverse = sum(1 / n for n in sizes) / 4
        scale.add(small, inverse, sum(x * x for x in whole), 64, part=weight(step, 1))
    found = scale.samples(64)
    assert found is not None
    assert 640 / 3 < found < 640 * 3, "the average extends over the last steps only"


def test_the_noise_scale_is_that_of_the_last_steps_while_gradients_become_shorter():
    """|G|² falls to a thirtieth within 500 steps, as in the first 500 of examples/02-storm; then it stays."""
    scale = NoiseScale()
    for step in range(3001):
        part = min(step / 500, 1.0)
        signal, variance = 30.0 ** (1 - part), 200.0
        if is_due(step, 10):
            scale.add(signal + variance / 16, 1 / 16, signal + variance / 64, 64, part=weight(step, 10))
        if step in (200, 400, 600, 3000):
            found = scale.samples(64)
            assert found is not None
            assert 0.4 < found / (variance / signal) <= 1.01, step
    assert found == pytest.approx(variance / signal, rel=0.01)


def test_a_job_measures_the_noise_seldom_in_the_end():
    measures = [step for step in range(2000) if is_due(step, 10)]
    assert measures[:100] == [*range(100)]
    assert measures[-100:] == [*range(1000, 2000, 10)]
    assert len(measures) < 400


def test_no_noise_scale_is_known_before_enough_steps_or_from_steps_of_one_part():
    scale = NoiseScale()
    for step in range(SETTLED - 1):
        scale.add(3.0, 1 / 8, 1.0, 32, part=weight(step, 10))
    assert scale.samples(32) is None
    for _ in range(5):
        scale.add(3.0, 1 / 32, 1.0, 32, part=0.1)  # the small batch is the whole one
        scale.add(float("inf"), 1 / 8, 1.0, 32, part=0.1)
        scale.add(float("nan"), 1 / 8, 1.0, 32, part=0.1)
    assert scale.samples(32) is None
    scale.add(3.0, 1 / 8, 1.0, 32, part=0.1)
    assert scale.samples(32) == pytest.approx((2 / (1 / 8 - 1 / 32)) / (1 - 2 / (1 / 8 - 1 / 32) / 32))


def test_a_noise_scale_without_a_signal_is_bounded():
    scale = NoiseScale()
    for _ in range(SETTLED):
        scale.add(4.0, 1 / 8, 0.9, 32, part=0.1)
    assert scale.samples(32) == pytest.approx(LARGEST * 32)
