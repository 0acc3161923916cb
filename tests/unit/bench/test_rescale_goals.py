"""The largest cost of an event, and when a goal is kept."""

from __future__ import annotations

import pytest

from bench_rescale.events import Event
from bench_rescale.goals import GOALS, Judged, judge
from bench_rescale.results import EventResult, Undisturbed

UNDISTURBED = (
    Undisturbed(size=2, steps=50, median=0.1, p95=0.15, longest=0.2),
    Undisturbed(size=3, steps=30, median=0.2, p95=0.3, longest=0.4),
)
TTL = 2.0


def goals(
    label: str, *, stalls: tuple[float, ...] = (0.0,), pause: float | None = None, sizes: tuple[int, int] = (2, 3),
    recovered: bool = True, undisturbed: tuple[Undisturbed, ...] = UNDISTURBED,
) -> dict[str, Judged]:  # fmt: skip
    """Figure -> verdict, over one run for each of ``stalls``, the last of which may not have ``recovered``."""
    events = [
        EventResult(
            label=label, from_size=sizes[0], to_size=sizes[1], recovered=recovered or stall != stalls[-1],
            stall=stall, time_to_size=pause, redone=0, discarded=0, pids_changed=False,
        )
        for stall in stalls
    ]  # fmt: skip
    return {j.goal.figure: j for j in judge(events, undisturbed, TTL)}


@pytest.mark.parametrize(
    ("label", "figure", "words", "bound"),
    [
        ("grow", "stall", "one step + 0.1 s", 0.3),
        ("grow #2", "time_to_size", "4 s", 4.0),
        ("grow-spare", "time_to_size", "0.5 s", 0.5),
        ("term", "stall", "one step + 0.05 s", 0.25),
        ("kill-rank", "stall", "two steps + 0.1 s", 0.5),
        ("silent", "stall", "one lease TTL + 1 s", 3.0),
        ("etcd", "stall", "one step + 0.05 s, or the longest undisturbed step", 0.4),
    ],
)
def test_a_bound_follows_from_the_undisturbed_step(label: str, figure: str, words: str, bound: float) -> None:
    judged = goals(label)[figure]
    assert (judged.goal.words, judged.bound) == (words, pytest.approx(bound))


def test_the_step_is_that_of_the_larger_size_for_growth_and_shrinkage() -> None:
    assert goals("kill-node", sizes=(3, 2))["stall"].bound == pytest.approx(0.5)
    assert goals("kill-node", sizes=(2, 1))["stall"].bound == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("stalls", "recovered", "kept"),
    [
        ((0.1, 0.2, 0.3), True, "yes"),
        ((0.1, 0.2, 0.4), True, "by the median"),
        ((0.1, 0.4, 0.4), True, "no"),
        ((0.1, 0.2, 0.3), False, "by the median"),
    ],
    ids=["all", "a tail", "none", "one run did not recover"],
)
def test_a_goal_is_kept_by_the_median_and_by_all(stalls: tuple[float, ...], recovered: bool, kept: str) -> None:
    assert goals("grow", stalls=stalls, recovered=recovered)["stall"].kept == kept


def test_a_goal_is_not_kept_if_nothing_could_be_measured() -> None:
    assert goals("grow", pause=None)["time_to_size"].kept == "no"


def test_nothing_is_judged_if_no_undisturbed_step_was_seen() -> None:
    assert goals("grow", undisturbed=()) == {}


def test_every_event_is_judged_or_has_no_goal_on_purpose() -> None:
    assert set(GOALS) == set(Event)
