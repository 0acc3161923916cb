"""The table of ``bench/shares.py``, and the speeds that it plays."""

from __future__ import annotations

import pytest

from bench_harness.machine import machine
from bench_shares.pictures import STEPS, pace
from bench_shares.speeds import BATCH, speed
from shares import Figures, Report, table


def report(*parts: float) -> Report:
    figures = [
        Figures(scenario="flaps", system=system, samples_per_second=(800.0,) * len(of), of_the_sum=of, ends=())
        for system, of in (("measured", parts), ("torchrun", (0.84, 0.85, 0.83)))
    ]
    return Report(machine=machine(), runs=3, seconds=40, figures=tuple(figures))


@pytest.mark.parametrize(("parts", "goal"), [((0.93, 0.96, 0.951), "met"), ((0.96, 0.94, 0.93), "missed")])
def test_a_row_has_all_runs_of_each_system_and_whether_the_median_meets_the_goal(parts, goal) -> None:
    shown = table(report(*parts))
    assert shown.header == ("the slow rank", "measured", "torchrun", "goal, 95%")
    low, middle, high = sorted(parts)
    measured = f"{100 * low:.1f} / {100 * middle:.1f} / {100 * high:.1f}"
    assert shown.rows == (("flaps", measured, "83.0 / 84.0 / 85.0", goal),)


def test_a_speed_flaps_each_5_seconds_or_changes_once() -> None:
    assert [speed("flaps", t) for t in (0, 4.9, 5, 9.9, 10)] == [1.0, 1.0, 0.5, 0.5, 1.0]
    assert [speed("changes", t) for t in (0, 9.9, 10)] == [1.0, 1.0, 0.25]
    assert speed("0.5", 7) == 0.5


def test_a_drawn_speed_is_the_mean_over_the_steps_before_it() -> None:
    ends = [0.5 * step for step in range(STEPS)] + [10.0]
    assert pace(ends) == ([10.0], [STEPS * BATCH / 10.0])
    assert pace(ends[:STEPS]) == ([], [])
