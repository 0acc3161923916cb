"""How the cost of the steady state follows from blocks of steps."""

from __future__ import annotations

import random

import pytest

from bench_steady import analysis
from bench_steady.analysis import Interval
from bench_steady.case import Block, Case, Variant, order

CASE = Case(workload="tiny", ranks=2, baseline="ddp", block=10, quads=40)


def blocks(extra: float, drift: float = 0.0, noise: float = 0.0, step: float = 0.01) -> list[Block]:
    """A run in which a step of elastrain takes ``extra`` seconds more; ``drift`` a block, for both."""
    draw = random.Random(1)
    found = []
    for number, variant in enumerate(order(CASE)):
        took = (step + number * drift + (extra if variant == "elastrain" else 0)) * CASE.block
        took *= 1 + noise * draw.random()
        found += [Block(rank=r, number=number, variant=variant, steps=CASE.block, wall=took, cpu=took) for r in (0, 1)]
    return found


def test_each_quad_has_both_variants_around_the_same_moment() -> None:
    variants = order(CASE)
    for quad in range(4):
        places: dict[Variant, list[int]] = {"elastrain": [], "ddp": []}
        for i, variant in enumerate(variants[4 * quad : 4 * quad + 4]):
            places[variant].append(i)
        assert sum(places["elastrain"]) == sum(places["ddp"]) == 3
    assert variants[0] == "elastrain" and variants[4] == "ddp"


def test_extra_time_is_found_in_spite_of_a_drift() -> None:
    found = analysis.compare(CASE, [blocks(extra=50e-6, drift=20e-6)])
    assert found.micros.median == pytest.approx(50, rel=0.01)
    assert found.cpu_micros.median == pytest.approx(50, rel=0.01)
    assert analysis.compare(CASE, [blocks(extra=50e-6)]).ratio.median == pytest.approx(0.005)


def test_a_disturbed_quad_does_not_count() -> None:
    quiet = blocks(extra=50e-6)
    disturbed = [b.model_copy(update={"wall": 9.0}) if b.number == 5 else b for b in quiet]
    assert analysis.compare(CASE, [disturbed]).micros.median == pytest.approx(50, rel=0.01)


def test_the_interval_contains_the_true_value_and_widens_with_noise() -> None:
    calm, loud = (analysis.compare(CASE, [blocks(extra=50e-6, noise=n)]).micros for n in (0.01, 0.1))
    assert calm.low <= 50 <= calm.high
    assert loud.low <= 50 <= loud.high
    assert loud.high - loud.low > calm.high - calm.low


def test_random_differences_between_starts_widen_the_interval() -> None:
    lucky, unlucky = ([blocks(extra=50e-6 + luck, noise=0.01) for luck in of] for of in ((0, 0, 0), (-2e-4, 0, 2e-4)))
    alike, apart = (analysis.compare(CASE, starts).micros for starts in (lucky, unlucky))
    assert apart.low <= 50 <= apart.high
    assert apart.high - apart.low > 3 * (alike.high - alike.low)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.002, 0.004, "kept"), (0.001, 0.008, "not resolved"), (0.006, 0.008, "missed")],
)
def test_a_verdict_needs_an_interval_on_one_side_of_the_goal(low: float, high: float, verdict: str) -> None:
    found = analysis.compare(CASE, [blocks(extra=0)])
    ratio = Interval(low=low, median=(low + high) / 2, high=high)
    assert found.model_copy(update={"ratio": ratio}).verdict == verdict


def test_missing_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="tiny-2-ddp: 319 blocks of 2 ranks, expected 160 of each"):
        analysis.compare(CASE, [blocks(extra=0), blocks(extra=0)[:-1]])
