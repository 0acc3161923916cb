"""The batch at which a job makes most progress, and what that progress is at each size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_resource.sizing.speedup import BATCH_REACH, Batches, Measured, Speedup, curve, learned

FIXED, SAMPLE, NETWORK, EACH = 0.05, 0.001, 0.03, 0.002


def step(workers: int, batch: int, nodes: int = 1, micro: int | None = None) -> Measured:
    parts = -(-batch // (workers * micro)) if micro else 1
    seconds = FIXED * parts + SAMPLE * batch / workers + NETWORK * (nodes > 1) + EACH * (workers - 1)
    return Measured(workers, nodes, seconds, batch)


SEEN = (step(1, 64), step(1, 256), step(4, 256), step(8, 512, nodes=2))


def test_the_batch_is_the_smallest_if_the_noise_or_the_step_time_is_unknown():
    assert learned(SEEN).best_batch(4, spans=False, batches=Batches(64, 4096)) == 64
    assert learned(()).best_batch(4, spans=False, batches=Batches(64, 4096, noise=1e4)) == 64


def test_the_smallest_batch_has_a_sample_for_each_rank():
    assert learned(()).best_batch(40, spans=True, batches=Batches(64, 4096, each=2)) == 128


def test_one_measured_batch_makes_the_job_try_a_larger_one_if_its_gradients_are_noisy():
    assert 128 <= learned((step(1, 64),)).best_batch(1, spans=False, batches=Batches(64, 4096, noise=1000.0)) <= 512


def test_the_best_batch_grows_with_the_noise_and_with_the_workers():
    model = learned(SEEN)
    by_noise = [model.best_batch(4, spans=False, batches=Batches(64, 8192, noise=n)) for n in (1.0, 1e2, 1e3, 1e4, 1e7)]
    by_size = [model.best_batch(w, spans=False, batches=Batches(64, 8192, noise=1000.0)) for w in (1, 2, 4, 8)]
    assert by_noise == sorted(by_noise)
    assert (by_noise[0], by_noise[-1]) == (64, 8192)
    assert by_size == sorted(by_size)
    assert by_size[0] < by_size[-1]


def test_parts_of_a_batch_are_full_if_a_worker_cannot_compute_it_at_once():
    micro = 16
    seen = (step(1, 16, micro=micro), step(2, 64, micro=micro), step(4, 128, 2, micro=micro))
    batch = learned(seen, micro).best_batch(4, spans=True, batches=Batches(16, 4096, noise=5000.0, micro=micro))
    assert batch > 4 * micro
    assert batch % (4 * micro) == 0


def test_with_one_possible_batch_the_speeds_are_those_of_a_fixed_one():
    fixed = curve(tuple(Measured(m.workers, m.nodes, m.seconds) for m in SEEN[2:]), 4, 8)
    free = curve(SEEN[2:], 4, 8, Batches(256, 256, noise=500.0))
    assert free[4] == pytest.approx(256 * fixed[4])


def test_a_batch_that_is_free_makes_larger_sizes_worth_more():
    fixed = curve(SEEN, 4, 16, Batches(64, 64, noise=5000.0))
    free = curve(SEEN, 4, 16, Batches(64, 4096, noise=5000.0))
    assert free[16] / free[1] > 2 * fixed[16] / fixed[1]


BOUNDS = st.builds(
    lambda base, more, noise, each, micro: Batches(base, base + more, noise, each, micro),
    st.integers(1, 300),
    st.integers(0, 5000),
    st.none() | st.floats(0.0, 1e9),
    st.integers(1, 8),
    st.none() | st.integers(8, 300),
)
TIMES = st.builds(Measured, st.integers(1, 64), st.integers(1, 8), st.floats(1e-3, 1e3), st.integers(2, 5000))


@examples(200)
@given(st.lists(TIMES, max_size=12), BOUNDS, st.integers(1, 64), st.booleans())
def test_every_batch_is_a_whole_multiple_within_the_bounds(sizes, bounds, workers, spans):
    model = learned(tuple(sizes), bounds.micro)
    batch = model.best_batch(workers, spans=spans, batches=bounds)
    low, _ = bounds.bounds(workers)
    assert batch % bounds.base == 0
    assert low <= batch <= max(low, bounds.most)
    assert batch >= workers * bounds.each
    assert 0 < model.speed(workers, spans=spans, batches=bounds) < float("inf")


@examples(100)
@given(BOUNDS, st.integers(1, 64), st.booleans(), st.tuples(*[st.floats(0.001, 1.0)] * 4))
def test_no_other_batch_is_much_better(bounds, workers, spans, terms):
    model = Speedup((terms[0], terms[1] / 100, terms[2], terms[3] / 10), (), bounds.micro)
    low, high = bounds.bounds(workers)
    best = max(
        model.goodput(workers, b, spans=spans, batches=bounds) for b in range(low, high + 1, bounds.base)
    ) if bounds.noise else 0.0  # fmt: skip
    assert model.speed(workers, spans=spans, batches=bounds) > 0.9 * best


def test_a_batch_changes_by_a_bounded_factor_at_once():
    model, bounds = learned((step(1, 64),)), Batches(64, 65536, noise=1e6)
    assert model.next_batch(64, 1, spans=False, batches=bounds) == BATCH_REACH * 64
    assert model.next_batch(65536, 1, spans=False, batches=replace(bounds, noise=0.1)) == 65536 // BATCH_REACH


def test_a_batch_stays_if_another_one_is_hardly_better():
    model, bounds = learned(SEEN), Batches(64, 8192, noise=2000.0)
    best = model.best_batch(4, spans=False, batches=bounds)
    assert model.next_batch(best - 64, 4, spans=False, batches=bounds) == best - 64


def test_a_batch_stays_within_the_bounds_if_nothing_is_known():
    assert learned(()).next_batch(128, 4, spans=False, batches=Batches(64, 4096, noise=1e4)) == 128
    assert learned(SEEN).next_batch(128, 4, spans=False, batches=Batches(64, 4096)) == 128
    assert learned(SEEN).next_batch(4096, 4, spans=False, batches=Batches(64, 512)) == 512


@examples(60)
@given(st.lists(TIMES, min_size=1, max_size=12), BOUNDS, st.integers(1, 64))
def test_a_batch_comes_to_rest(sizes, bounds, workers):
    model = learned(tuple(sizes), bounds.micro)
    batch = bounds.base
    for _ in range(30):
        last, batch = batch, model.next_batch(batch, workers, spans=False, batches=bounds)
    assert batch == last
