"""What a job's own steps tell about other sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_resource.sizing.speedup import Measured, curve, learned


def amdahl(workers: int, nodes: int = 1) -> Measured:
    """A step of 1 s with one worker, of which 0.2 s cannot be divided; several nodes take 0.1 s more."""
    return Measured(workers, nodes, 0.2 + 0.8 / workers + 0.1 * (nodes > 1))


def test_speed_is_proportional_to_the_workers_if_nothing_was_measured():
    assert curve((), 4, 3) == (0.0, 1.0, 2.0, 3.0)


def test_a_measured_size_has_the_measured_speed():
    sizes = (amdahl(1), amdahl(4), amdahl(8, nodes=2))
    speeds = curve(sizes, 4, 8)
    assert [1 / speeds[m.workers] for m in sizes] == [pytest.approx(m.seconds) for m in sizes]


def test_the_newest_measurement_of_a_size_counts():
    assert curve((Measured(2, 1, 1.0), Measured(2, 1, 0.5)), 4, 2)[2] == 2.0


def test_one_measured_size_promises_a_bounded_speedup():
    speeds = curve((Measured(2, 1, 1.0),), 8, 8)
    assert 2.5 < speeds[8] / speeds[2] < 4, "optimistic, but less than proportional"


def test_other_sizes_are_predicted_from_few_measured_ones():
    speeds = curve((amdahl(1), amdahl(2), amdahl(8, nodes=2)), 4, 16)
    for workers, nodes, error in ((3, 1, 0.06), (4, 1, 0.06), (6, 2, 0.06), (12, 3, 0.15)):
        assert 1 / speeds[workers] == pytest.approx(amdahl(workers, nodes).seconds, rel=error)


def test_a_job_that_gets_no_faster_from_4_to_8_workers_is_not_predicted_to_get_faster_between_or_far_slower_outside():
    flat = tuple(Measured(w, 1, 0.95 + 0.05 / w) for w in (4, 8))
    times = [0.0, *(1 / speed for speed in curve(flat, 16, 16)[1:])]
    assert times[6] > 0.93
    assert times[3] < 1.05
    assert times[2] < 1.2
    assert times[16] < 1.2


def test_several_nodes_cost_more_than_one_if_they_were_never_tried():
    speeds = curve((amdahl(1), amdahl(4)), 4, 5)
    assert speeds[5] < speeds[4] * 1.05


def test_a_size_that_has_run_on_several_nodes_only_has_that_speed_although_one_node_would_take_it():
    assert curve((amdahl(2, nodes=2),), 4, 4)[2] == 1 / amdahl(2, nodes=2).seconds
    assert curve((amdahl(2, nodes=2), amdahl(2)), 4, 4)[2] == 1 / amdahl(2).seconds


def test_sizes_on_several_nodes_alone_do_not_make_a_fixed_part_the_networks():
    flat = tuple(Measured(w, 2, 0.9 + 0.1 / w) for w in (4, 2))
    assert 1 / curve(flat, 4, 4)[1] > 0.8


SIZES = st.lists(
    st.builds(Measured, st.integers(1, 64), st.integers(1, 8), st.floats(1e-3, 1e3)), min_size=1, max_size=12
)


@examples(200)
@given(SIZES)
def test_every_prediction_is_a_speed(sizes):
    speeds = curve(tuple(sizes), 4, 70)
    assert all(0 < s < float("inf") for s in speeds[1:])


@examples(100)
@given(st.floats(0.05, 1.0), st.floats(0.0, 0.9), st.randoms(use_true_random=False))
def test_noise_of_five_percent_moves_a_prediction_within_the_measured_sizes_by_less_than_fifteen(one, fixed, random):
    def seconds(workers: int) -> float:
        return one * (fixed + (1 - fixed) / workers)

    noisy = tuple(Measured(w, 1, seconds(w) * random.uniform(0.95, 1.05)) for w in (1, 2, 4, 8))
    model = learned(noisy)
    for workers in (3, 5, 6, 7):
        assert 1 / model.speed(workers, spans=False) == pytest.approx(seconds(workers), rel=0.15)
