"""Figures over time in bounded memory."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from elastrain_dashboard.history import OTHERS, Figures, Shares, largest

GAPS = st.lists(st.floats(0.1, 400), min_size=1, max_size=300)


@given(GAPS)
def test_a_series_is_bounded_in_order_and_reaches_back_to_its_beginning(gaps: list[float]) -> None:
    figures, now = Figures(points=16), 1000.0
    for step, gap in enumerate(gaps):
        figures.add(now, step=step, loss=1 / (step + 1), ready=step % 3, desired=2)
        now += gap
    shown = figures.shown()
    assert len(figures) <= 17
    assert shown["time"] == sorted(shown["time"])
    assert shown["time"][0] == 1000.0
    assert len({len(column) for column in shown.values()}) == 1


def test_a_change_of_size_is_kept_at_once_and_everything_else_now_and_then() -> None:
    figures = Figures(spacing=10)
    for second in range(20):
        figures.add(second, step=second, loss=None, ready=1 if second < 5 else 2, desired=2)
    assert figures.shown()["time"] == [0, 5, 10]


def test_an_unknown_value_is_null_in_json() -> None:
    figures = Figures()
    figures.add(0, step=None, loss=None, ready=0, desired=1)
    assert json.loads(json.dumps(figures.shown(), allow_nan=False))["loss"] == [None]


@given(st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=40), min_size=1, max_size=60))
def test_shares_are_bounded_and_add_up(moments: list[dict[str, int]]) -> None:
    shares = Shares(spacing=1, points=8)
    for second, parts in enumerate(moments):
        shares.add(second, None, parts)
    shown = shares.shown()
    assert len(shares) <= 9
    for i, second in enumerate(shown["time"]):
        assert sum(column[i] for column in shown["parts"].values()) == sum(moments[int(second)].values())


def test_the_largest_are_shown_separately_and_the_rest_together() -> None:
    assert largest({"a": 1, "b": 3, "c": 2, "d": 0}, most=2) == {"b": 3, "c": 2, OTHERS: 1}
    assert largest({"a": 1}, most=2) == {"a": 1}
