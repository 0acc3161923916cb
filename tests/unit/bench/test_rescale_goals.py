"""What an event may cost at most, and when that is called kept."""

from __future__ import annotations

import pytest

from rescale_harness.events import Event
from rescale_harness.goals import GOALS, judge
from rescale_harness.results import EventSummary, GoalResult, Spread, Undisturbed

UNDISTURBED = (
    Undisturbed(size=2, steps=50, median=0.1, p95=0.15, longest=0.2),
    Undisturbed(size=3, steps=30, median=0.2, p95=0.3, longest=0.4),
)
TTL = 2.0


def goals(
    label: str, *, stall: float = 0.0, worst: float | None = None, pause: float | None = None,
    sizes: tuple[int, int] = (2, 3), recovered: int = 3, undisturbed: tuple[Undisturbed, ...] = UNDISTURBED,
) -> dict[str, GoalResult]:  # fmt: skip
    """Figure -> how it was judged; ``stall`` is the median and ``worst`` the greatest one."""
    none = Spread(min=0, median=0, max=0)
    event = EventSummary(
        label=label, from_size=sizes[0], to_size=sizes[1], runs=3, recovered=recovered,
        stall=Spread(min=0, median=stall, max=stall if worst is None else worst),
        pause=None if pause is None else Spread(min=pause, median=pause, max=pause),
        redone=none, discarded=none, pids_changed=0, changes=Spread(min=1, median=1, max=2),
    )  # fmt: skip
    return {g.figure: g for g in judge(event, undisturbed, TTL)}


@pytest.mark.parametrize(
    ("label", "figure", "words", "bound"),
    [
        ("grow", "stall", "one step + 0.1 s", 0.3),
        ("grow #2", "pause", "4 s", 4.0),
        ("grow-spare", "pause", "0.5 s", 0.5),
        ("term", "stall", "one step + 0.05 s", 0.25),
        ("kill-rank", "stall", "two steps + 0.1 s", 0.5),
        ("kill-rank", "pause", "1 s", 1.0),
        ("silent", "stall", "one lease TTL + 1 s", 3.0),
        ("etcd", "stall", "one step + 0.05 s, or the longest undisturbed step", 0.4),
        ("grow-many", "changes", "1", 1),
    ],
)
def test_a_bound_follows_from_the_undisturbed_step(label: str, figure: str, words: str, bound: float) -> None:
    goal = goals(label)[figure]
    assert (goal.words, goal.bound) == (words, pytest.approx(bound))


def test_the_step_is_that_of_the_larger_size_whichever_way_it_changed() -> None:
    assert goals("kill-node", sizes=(3, 2))["stall"].bound == pytest.approx(0.5)
    assert goals("kill-node", sizes=(2, 1))["stall"].bound == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("stall", "worst", "recovered", "by_median", "by_all"),
    [
        (0.2, 0.3, 3, True, True),
        (0.2, 0.4, 3, True, False),
        (0.4, 0.4, 3, False, False),
        (0.2, 0.3, 2, True, False),
    ],
    ids=["all", "a tail", "none", "one run did not recover"],
)
def test_a_goal_is_kept_by_the_median_and_by_all(
    stall: float, worst: float, recovered: int, by_median: bool, by_all: bool
) -> None:
    goal = goals("grow", stall=stall, worst=worst, recovered=recovered)["stall"]
    assert (goal.met_by_median, goal.met_by_all) == (by_median, by_all)


def test_a_goal_is_not_kept_if_nothing_could_be_measured() -> None:
    pause = goals("grow", pause=None)["pause"]
    assert not pause.met_by_median and not pause.met_by_all


def test_nothing_is_judged_if_no_undisturbed_step_was_seen() -> None:
    assert goals("grow", undisturbed=()) == {}


def test_every_event_has_a_goal() -> None:
    assert set(GOALS) == set(Event)
