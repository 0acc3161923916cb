"""Which cut of the batches a run had, and whether two references differ by rounding."""

from __future__ import annotations

from elastrain_verify.history import Committed, History, Process
from elastrain_verify.parts import NOISE, is_cut, measured, schedule, wider


def history(*shares: tuple[int, int], loss: float = 1.0) -> History:
    committed = [Committed(s, "w", {"job.loss": loss}, share=share) for s, share in enumerate(shares, 1)]
    return History([Process("w", 1, committed)])


def test_schedule_has_each_change_of_the_number_of_parts() -> None:
    assert schedule(history((0, 2), (0, 2), (1, 3), (0, 1))) == ((0, 2), (2, 3), (3, 1))


def test_run_of_one_rank_cuts_nothing() -> None:
    assert not is_cut(schedule(history((0, 1), (0, 1))))


def test_bounds_are_a_multiple_of_what_a_cut_changes() -> None:
    bounds = measured(history((0, 1)), history((0, 2), loss=1.0 + 1e-6), epsilon=1e-7)
    assert bounds is not None and bounds.measured is not None
    assert abs(bounds.measured["job"] / (NOISE * 1e-6) - 1) < 1e-3


def test_there_are_no_bounds_if_a_cut_changes_the_model() -> None:
    assert measured(history((0, 1)), history((0, 2), loss=1.1), epsilon=1e-7) is None


def test_wider_bounds_permit_what_either_permits() -> None:
    one = measured(history((0, 1)), history((0, 2), loss=1.0 + 1e-6), epsilon=1e-7)
    other = measured(history((0, 1)), history((0, 2), loss=1.0 + 1e-5), epsilon=1e-7)
    assert one is not None and other is not None
    assert wider(one, other).measured == other.measured
