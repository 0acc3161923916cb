"""In which loop bodies a rank is killed: once in each branch, as far as it changes tracked objects of the script."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elastrain_verify.branches import MOST, branches, moments
from elastrain_verify.history import Begun, Committed, History, Process
from elastrain_verify.runs import Kind, Place, plan

GOOD, OVERFLOW = {"scale.good"}, {"scale.good", "scale.value"}


def history(states: Sequence[dict], own: Sequence[str] = ("scale",)) -> History:
    """A reference whose tracked objects are in these states: at its begin, and after each step."""
    begun = [Begun(step, False, state) for step, state in enumerate(states[:-1])]
    committed = [Committed(step, "w", state) for step, state in enumerate(states[1:], start=1)]
    return History([Process("w", 1, committed, begun=begun, facts={"own": list(own)})])


def scale(*states: tuple[float, int]) -> list[dict]:
    return [{"scale.value": value, "scale.good": good, "net.w": float(i)} for i, (value, good) in enumerate(states)]


def test_branch_is_what_a_body_changes_in_objects_of_the_scripts_own() -> None:
    found = branches(history(scale((4.0, 0), (2.0, 0), (2.0, 1), (1.0, 0))))
    assert found == {0: {"scale.value"}, 1: GOOD, 2: OVERFLOW}


def test_no_branch_is_known_if_the_script_tracks_nothing_of_its_own() -> None:
    assert branches(history(scale((4.0, 0), (2.0, 0)), own=())) == {}


@pytest.mark.parametrize("rare", range(1, 9))
def test_rank_is_killed_in_a_body_of_each_branch_wherever_the_rare_one_is(rare: int) -> None:
    found = {step: frozenset(OVERFLOW if step == rare else GOOD) for step in range(16)}
    chosen = moments(found, 16)
    assert {found[step] for step in chosen} == {frozenset(GOOD), frozenset(OVERFLOW)}
    assert chosen[0] == rare, "the first body has not shown it"


def test_rank_is_killed_once_in_the_middle_if_all_bodies_take_one_branch() -> None:
    assert moments({}, 16) == [8]
    assert moments({step: frozenset(GOOD) for step in range(16)}, 16) == [8]


def test_kills_are_bounded_if_each_body_takes_a_branch_of_its_own() -> None:
    assert len(moments({step: frozenset({str(step)}) for step in range(16)}, 16)) == MOST


def test_plan_kills_a_rank_at_each_moment_with_the_data_that_show_the_branches() -> None:
    runs = [run for run in plan(16, 3, kills=[6, 8], seed=2) if run.kind is Kind.LOSS and run.place is Place.BODY]
    assert [(run.at, run.seed) for run in runs] == [(6, 2), (8, 2)]
    assert len({run.name for run in runs}) == 2
