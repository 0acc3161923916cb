"""How the cost of checkpoints follows from steps and from the moments at which checkpoints were complete."""

from __future__ import annotations

import pytest

import checkpoint
from bench_checkpoint.analysis import RunFigures, save_figures
from bench_harness.machine import machine


def commits(slow: dict[int, float], steps: int = 60) -> dict[int, float]:
    """Steps of 0.1 s, but those in ``slow``."""
    at, found = 0.0, {}
    for step in range(1, steps + 1):
        at += slow.get(step, 0.1)
        found[step] = at
    return found


def test_only_the_steps_during_a_save_count_as_its_cost() -> None:
    at = commits({21: 9.0, 41: 0.3, 42: 0.2, 50: 5.0})
    found = save_figures(at, {20: at[22], 40: at[42]})
    assert found.step == pytest.approx(0.1)
    assert found.extra == (pytest.approx(0.3),)
    assert found.longest == (pytest.approx(0.3),)
    assert found.saves == (pytest.approx(0.5),)


def test_the_step_after_a_save_counts_even_if_the_save_was_shorter() -> None:
    """It contains the copy of the state."""
    at = commits({41: 0.4})
    assert save_figures(at, {20: at[20] + 0.01, 40: at[40] + 0.01}).extra == (pytest.approx(0.3),)


@pytest.mark.parametrize("complete", [{}, {20: 3.0}])
def test_fewer_than_two_checkpoints_are_refused(complete: dict[int, float]) -> None:
    with pytest.raises(ValueError, match=f"{len(complete)} checkpoints and .* at least 2 and 1 are needed"):
        save_figures(commits({}), complete)


def test_the_table_has_a_row_for_each_system_and_says_what_part_of_the_steps_a_save_costs() -> None:
    figures = {"step": 0.1, "extra": (0.3,), "longest": (0.2,), "saves": (0.5,), "start": 4.0, "resume": 5.0}
    runs = tuple(RunFigures(system=name, state_bytes=110_000_000, **figures) for name in ("elastrain", "dcp"))
    rows = checkpoint.table(checkpoint.Report(machine=machine(), every=30, runs=runs)).rows
    assert rows[0] == ("elastrain", "110", "100", "0.30", "10.0", "200", "0.50", "4.0", "5.0")
    assert rows[1][0] == "dcp"
