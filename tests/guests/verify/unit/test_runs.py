"""Which runs a verification has, and which kind of fault the first that parts stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from elastrain_verify import kinds
from elastrain_verify.compare import Bounds, Parting
from elastrain_verify.history import Begun, Committed, History, Process
from elastrain_verify.runs import FEWEST_STEPS, Kind, Place, Run, plan

ROOT = Path(__file__).parents[4]


def test_undisturbed_runs_come_first_and_grow() -> None:
    runs = list(plan(12, 3))
    assert [r.kind for r in runs[:4]] == [Kind.REPEAT, Kind.ONE, Kind.SEVERAL, Kind.SEVERAL]
    assert [r.workers for r in runs[:4]] == [1, 1, 2, 3]
    assert all(r.at for r in runs[4:])


def test_every_disturbance_is_planned() -> None:
    runs = list(plan(12, 3, several_backwards=True))
    assert {r.kind for r in runs} == set(Kind) - {Kind.REFERENCE}
    assert {r.place for r in runs if r.kind is Kind.LOSS} == set(Place)


def test_no_rank_is_killed_between_two_backwards_of_a_step_that_has_one() -> None:
    assert {r.place for r in plan(12, 3) if r.kind is Kind.LOSS} == set(Place) - {Place.BACKWARDS}


@pytest.mark.parametrize("steps", [FEWEST_STEPS, 12, 16, 100])
@pytest.mark.parametrize("most", [2, 3, 5])
def test_disturbances_leave_steps_before_and_after(steps: int, most: int) -> None:
    for run in plan(steps, most, several_backwards=True):
        if run.at:
            assert 1 <= run.at <= steps // 2
            assert 1 <= run.workers <= most and 1 <= run.then <= most


def test_names_of_runs_are_unique() -> None:
    names = sorted(r.name for r in plan(12, 4, several_backwards=True))
    assert all(a != b for a, b in pairwise(names))


def test_script_that_is_too_short_is_not_disturbed() -> None:
    assert not any(r.at for r in plan(FEWEST_STEPS - 1, 3))


ALL = Parting(step=9, entry="model.w", expected=1, found=2, rank=0, world=3, ranks=(0, 1, 2))
ONE = Parting(step=9, entry="model.w", expected=1, found=2, rank=2, world=3, ranks=(2,))


GRADIENT = Parting(2, "model.w.grad", 1, 2, world=2, ranks=(0, 1))
FILE = Parting(16, "file log", 1, 2, world=3, ended=True)
BATCH = Parting(2, "batch", {"0 to 7": "a"}, {"0 to 7": "b"}, ranks=(0,))


def process(*begun: Begun, committed: Sequence[Committed] = (), **facts: object) -> History:
    return History([Process("w", 1, committed, begun=begun, facts=facts)])


WARMED = process(Begun(0, True, {"scale.good": 0}), Begun(0, False, {"scale.good": 0}))


@pytest.mark.parametrize(
    ("kind", "parting", "facts", "expected"),
    [
        (Kind.REPEAT, ALL, {}, "not repeatable"),
        (Kind.REPEAT, BATCH, {}, "not repeatable"),
        (Kind.ONE, ALL, {}, "of elastrain"),
        (Kind.ONE, BATCH, {}, "data"),
        (Kind.SEVERAL, ALL, {}, "one rank"),
        (Kind.SEVERAL, replace(ALL, of_a_part=True), {}, "of a part"),
        (Kind.SEVERAL, ALL, {"of_each_part": ["model.w"]}, "each micro-batch"),
        (Kind.SEVERAL, replace(ALL, of_bodies=True), {}, "each micro-batch"),
        (Kind.SEVERAL, GRADIENT, {}, "gradient of a part"),
        (Kind.SEVERAL, replace(GRADIENT, of_a_part=True), {}, "gradient of a part"),
        (Kind.GROWTH, ONE, {}, "does not travel"),
        (Kind.GROWTH, BATCH, {}, "does not travel"),
        (Kind.LOSS, Parting(9, "model.w", 1, 2, world=2, ranks=(0, 1)), {}, "discarded body"),
        (Kind.SEVERAL, FILE, {}, "other files"),
        (Kind.GROWTH, FILE, {}, "discarded body"),
        (Kind.LOSS, FILE, {}, "discarded body"),
        (Kind.LOSS, replace(FILE, lacks=True), {}, "does not travel"),
        (Kind.RESUME, FILE, {}, "not saved"),
        (Kind.LOSS, ONE, {}, "does not travel"),
        (Kind.RESUME, ALL, {}, "not saved"),
    ],
)
def test_kind_follows_from_what_the_run_shows(kind: Kind, parting: Parting, facts: dict, expected: str) -> None:
    at = 0 if kind in (Kind.REPEAT, Kind.ONE, Kind.SEVERAL) else 4
    run, truth = Run("r", kind, "a run", 3, at), process(**facts)
    found = kinds.fault(run, parting, ranks=3, truth=truth, found=WARMED, bounds=Bounds())
    assert found.name == expected


@pytest.mark.parametrize(("kind", "step"), [(Kind.ONE, 0), (Kind.LOSS, 5)])
def test_fault_is_elastrains_if_a_body_begins_with_what_its_discarded_execution_has_left(kind: Kind, step: int) -> None:
    found = process(Begun(step, not step, {"scale.good": 2, "model.w": 1}), Begun(step, False, {"scale.good": 3}))
    run = Run("r", kind, "", 3, at=4)
    assert kinds.fault(run, ALL, ranks=3, truth=process(), found=found, bounds=Bounds()) is kinds.NOT_PUT_BACK
    shown = kinds.first_of(kinds.NOT_PUT_BACK, process(), found, Bounds())
    assert shown is not None
    assert (shown.entry, shown.expected, shown.found) == ("scale.good", 2, 3)


@pytest.mark.parametrize(("between", "expected"), [(2, "not received"), (9, "does not travel")])
def test_fault_is_elastrains_if_a_joiner_begins_with_other_state_unless_the_script_has_changed_it(
    between: int, expected: str
) -> None:
    """``between``: the value in the reference as step 4 was committed; the next body begins with 2."""
    truth = process(Begun(4, False, {"scale.good": 2}), committed=[Committed(4, "w", {"scale.good": between})])
    joined = process(Begun(4, False, {"scale.good": 1}), Begun(5, False, {"scale.good": 1}))
    run = Run("growth", Kind.GROWTH, "", 2, at=3, then=3)
    assert kinds.fault(run, ALL, ranks=3, truth=truth, found=joined, bounds=Bounds()).name == expected
