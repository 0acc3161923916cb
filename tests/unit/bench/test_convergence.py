"""Losses at equal progress."""

from __future__ import annotations

import pytest

from bench_convergence.analysis import Curve, Point, compared


def curve(rule: str, seed: int, *, worth: float, end: int) -> Curve:
    """A loss that falls by the progress alone, a look each 100 effective samples."""
    points = [
        Point(effective=float(at), loss=2 - at / 10_000 + seed / 100, samples=at / worth, updates=at // 50, noise=None)
        for at in range(100, end + 1, 100)
    ]
    return Curve(task="digits", rule=rule, seed=seed, points=tuple(points))


RUNS = [curve(rule, seed, worth=worth, end=end) for rule, worth, end in (("", 1.0, 10_000), ("Linear", 0.8, 8_000))
        for seed in (0, 1)]  # fmt: skip


def test_losses_are_compared_where_all_runs_have_been_by_progress_and_by_samples():
    script, linear = compared(RUNS, (0.5, 1.0))
    assert script.at == linear.at == (4_000, 8_000)
    assert script.losses == pytest.approx(linear.losses)
    assert script.spreads == pytest.approx((0.00707, 0.00707), abs=1e-5)
    assert (script.worth, linear.worth) == pytest.approx((1.0, 0.8))
    assert (script.samples, linear.samples) == pytest.approx((50, 62.5))
    assert linear.at_samples > script.at_samples == pytest.approx(script.losses[-1])


def test_the_loss_at_a_progress_is_that_of_the_nearest_look_if_none_is_close_before_it():
    assert RUNS[0].loss_at(20_000) == RUNS[0].points[-1].loss
    assert RUNS[0].loss_at(10) == RUNS[0].points[0].loss
