"""Runs that execute at the same time."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from elastrain_verify.command.side_by_side import MOST, idle_processors, side_by_side
from elastrain_verify.runs import Kind, Run

RUNS = [Run(f"r{i}", Kind.SEVERAL, "", 2) for i in range(6)]
SECONDS = 10.0


def test_outcomes_come_in_the_order_of_the_plan_if_a_later_run_ends_first() -> None:
    second = threading.Event()

    def execute(run: Run) -> str:
        if run is RUNS[0]:
            assert second.wait(SECONDS), "the second run is not beside the first"
        elif run is RUNS[1]:
            second.set()
        return run.name

    found = [(run.name, outcome.result()) for run, outcome in side_by_side(RUNS, execute, 2)]
    assert found == [(run.name, run.name) for run in RUNS]


def test_no_further_run_begins_if_an_outcome_ends_the_verification() -> None:
    begun: list[str] = []
    go = threading.Event()

    def execute(run: Run) -> None:
        begun.append(run.name)
        assert run is RUNS[0] or go.wait(SECONDS)

    with closing(side_by_side(RUNS, execute, 1)) as outcomes:
        _, first = next(outcomes)
        first.result()
        threading.Timer(0.05, go.set).start()
    assert len(begun) <= 2


@pytest.mark.parametrize(("load", "expected"), [(0.0, 2), (0.4, 2), (1.2, 1), (30.0, 1), (-9.0, MOST)])
def test_as_many_runs_are_side_by_side_as_processors_are_idle(monkeypatch, load: float, expected: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert idle_processors() == expected
