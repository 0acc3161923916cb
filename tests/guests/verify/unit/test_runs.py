"""Which runs a verification has, and which kind of fault the first that parts stands for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from elastrain_verify import kinds
from elastrain_verify.compare import Parting
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


@pytest.mark.parametrize(
    ("kind", "parting", "expected"),
    [
        (Kind.REPEAT, ALL, kinds.NOT_REPEATABLE),
        (Kind.ONE, ALL, kinds.UNGATED),
        (Kind.SEVERAL, ALL, kinds.ONE_RANK),
        (Kind.SEVERAL, Parting(2, "model.w.grad", 1, 2, world=2, ranks=(0, 1)), kinds.KEPT_GRADIENTS),
        (Kind.GROWTH, ONE, kinds.NOT_TRAVELLING),
        (Kind.LOSS, Parting(9, "model.w", 1, 2, world=2, ranks=(0, 1)), kinds.DISCARDED),
        (Kind.LOSS, Parting(16, "file log", 1, 2, world=3, ended=True), kinds.DISCARDED),
        (Kind.LOSS, ALL, kinds.NOT_TRAVELLING),
        (Kind.LOSS, ONE, kinds.NOT_TRAVELLING),
        (Kind.RESUME, ALL, kinds.NOT_SAVED),
    ],
)
def test_kind_follows_from_the_run_and_the_ranks(kind: Kind, parting: Parting, expected: kinds.Fault) -> None:
    run = Run("r", kind, "a run", 3, at=4)
    assert kinds.fault(run, parting, ranks=3) == expected
