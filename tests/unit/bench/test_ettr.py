"""The failures of ``bench/ettr.py``, and how a run's time is split."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_ettr.account import CAPACITY, JOIN, REDONE, SCATTER, Mark, account, marks, marks_of_any, undisturbed
from bench_ettr.report import CAUSES as COLUMNS
from bench_ettr.trace import CAUSES, Kind, trace
from bench_rescale.steplog import Line

FULL = 4


def steady(begin: float, first: int, count: int, world: int = FULL, seconds: float = 1.0) -> list[Mark]:
    """``count`` steps after ``begin``."""
    return [Mark(begin + seconds * (i + 1), first + i, world, 64) for i in range(count)]


# ---- the failures --------------------------------------------------------------------------------------------------
def test_the_causes_are_those_published_for_llama_3() -> None:
    assert sum(count for count, kind in CAUSES.values() if kind is not Kind.RECLAIMED) == 419
    assert sum(count for count, _ in CAUSES.values()) == 466


@given(seed=st.integers(), rate=st.floats(1, 500), minutes=st.floats(0.1, 60))
def test_equal_arguments_give_equal_failures_in_order_within_the_time(seed: int, rate: float, minutes: float) -> None:
    found = trace(seed, rate, minutes)
    assert found == trace(seed, rate, minutes)
    assert list(found) == sorted(found, key=lambda failure: failure.at)
    assert all(0 < failure.at < 60 * minutes and 0 <= failure.place < 1 for failure in found)


def test_another_seed_or_rate_gives_other_failures() -> None:
    traces = [trace(*args) for args in ((1, 120, 30), (2, 120, 30), (1, 60, 30))]
    assert len({found[0].at for found in traces}) == 3


def test_a_longer_run_begins_with_the_failures_of_a_shorter_one() -> None:
    assert trace(1, 120, 30)[: len(trace(1, 120, 3))] == trace(1, 120, 3)


def test_failures_come_as_often_as_asked_and_in_the_published_mix() -> None:
    found = trace(1, 120, 60_000)
    assert len(found) == pytest.approx(120_000, rel=0.02)
    kinds = Counter(failure.kind for failure in found)
    assert kinds[Kind.NODE] / len(found) == pytest.approx(211 / 466, rel=0.03)
    assert kinds[Kind.SLOW] / len(found) == pytest.approx(6 / 466, rel=0.1)


# ---- the split -----------------------------------------------------------------------------------------------------
def test_all_time_is_productive_if_nothing_happens() -> None:
    found = account(steady(0, 1, 10), [], (0, 10), FULL)
    assert found.productive == pytest.approx(10)
    assert sum(found.lost.values()) == pytest.approx(0)
    assert found.step == pytest.approx(1)


def test_a_pause_is_blamed_on_the_first_event_within_it_or_the_newest_before_it() -> None:
    steps = [*steady(0, 1, 5), *steady(9, 6, 5)]
    found = account(steps, [(2.5, "rank"), (5.5, "node"), (8.5, JOIN)], (0, 14), FULL)
    assert found.lost["node"] == pytest.approx(4)
    assert found.productive == pytest.approx(10)
    assert found.longest == pytest.approx(5)
    assert account(steps, [(2.5, "rank"), (4.5, JOIN)], (0, 14), FULL).lost[JOIN] == pytest.approx(4)


def test_steps_of_three_of_four_ranks_lose_capacity_and_no_time_to_a_cause() -> None:
    short = [Mark(5 + 4 / 3 * (i + 1), 6 + i, 3, 64) for i in range(3)]
    found = account([*steady(0, 1, 5), *short], [(4.9, "node")], (0, 9), FULL)
    assert found.lost[CAPACITY] == pytest.approx(1)
    assert found.productive == pytest.approx(8)


def test_steps_that_the_job_is_rolled_back_by_are_lost_and_their_second_run_counts() -> None:
    steps = [*steady(0, 1, 5), *steady(8, 3, 4)]
    found = account(steps, [(5.5, "node")], (0, 12), FULL)
    assert found.lost[REDONE] == pytest.approx(3)
    assert found.rolled_back == 3
    assert found.lost["node"] == pytest.approx(3)
    assert found.productive == pytest.approx(6)


def test_a_job_that_stands_still_at_the_end_loses_the_rest() -> None:
    found = account(steady(0, 1, 5), [(5.2, "frozen")], (0, 20), FULL)
    assert found.lost["frozen"] == pytest.approx(15)
    assert found.longest == pytest.approx(15)


def test_a_run_without_an_undisturbed_step_is_no_result() -> None:
    with pytest.raises(ValueError, match="no step of 4 ranks follows another one"):
        undisturbed(steady(0, 1, 5, world=3), FULL)


@given(
    gaps=st.lists(st.floats(0.01, 30), min_size=5, max_size=60),
    worlds=st.lists(st.integers(1, FULL), min_size=60, max_size=60),
    back=st.lists(st.integers(0, 5), min_size=60, max_size=60),
    events=st.lists(st.tuples(st.floats(0, 500), st.sampled_from([*Kind, JOIN]))),
    rest=st.floats(0, 20),
)
def test_productive_and_lost_time_add_up_to_the_wall_clock_and_each_cause_has_a_column(
    gaps, worlds, back, events, rest
) -> None:
    at, step, steps = 0.0, 0, [Mark(-1.0, -1, FULL, 64)]
    for gap, world, again in zip([1.0, 1.0, *gaps], [FULL, FULL, *worlds], [0, 0, *back], strict=False):
        at, step = at + gap, max(1, step + 1 - again)
        steps.append(Mark(at, step, world, 64))
    found = account(steps, sorted(events), (0.0, at + rest), FULL)
    assert found.productive + sum(found.lost.values()) == pytest.approx(found.wall)
    assert found.productive >= 0
    assert set(found.lost) <= set(COLUMNS)


# ---- the steps -----------------------------------------------------------------------------------------------------
def commit(at: float, step: int, rank: int, world: int = 2) -> Line:
    return Line("commit", at, node=rank, pid=1, step=step, world=world, rank=rank)


def test_steps_are_those_of_rank_0_where_ranks_are_numbered() -> None:
    lines = [commit(1, 1, 0), commit(1.1, 1, 1), commit(2.1, 2, 1), commit(2, 2, 0)]
    assert [(m.at, m.step, m.samples) for m in marks(lines, 16, None)] == [(1, 1, 32), (2, 2, 32)]
    assert [m.samples for m in marks(lines, 16, 64)] == [64, 64]


def test_a_step_counts_at_its_first_commit_where_ranks_are_not_numbered() -> None:
    lines = [commit(1.2, 1, 5), commit(1, 1, 7), commit(2, 2, 7)]
    assert marks_of_any(lines, 16) == [Mark(1, 1, 2, 32), Mark(2, 2, 2, 32)]


def test_scatter_has_no_cause() -> None:
    found = account([*steady(0, 1, 5), Mark(6.4, 6, FULL, 64)], [(5.5, "node")], (0, 6.4), FULL)
    assert found.lost[SCATTER] == pytest.approx(0.4)
