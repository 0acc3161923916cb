"""Progress and remaining time, from what rank 0 reports."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from elastrain.api.batch import BatchFigures
from elastrain.api.records import Progress
from elastrain_resource.job.reported import eta_seconds, progress_status, samples_per_second

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def report(**fields) -> Progress:
    known = {"step": 100, "total_steps": 1000, "samples": 25_600, "step_seconds": 0.5, "epoch": 2}
    return Progress(generation=1, world_size=2, members=2, **{**known, **fields})


def test_status_has_progress_speed_and_estimated_end():
    status = progress_status(None, None, report(), NOW)
    assert (status.of, status.epoch, status.samples_per_second) == (1000, 2, 512.0)
    assert datetime.fromisoformat(status.eta) == NOW + timedelta(seconds=450)


@pytest.mark.parametrize(
    ("batch", "worth"),
    [
        (BatchFigures(samples=512, effective_samples=23_456.7), 23_457),
        (BatchFigures(samples=512, effective_samples=float("nan")), None),
        (BatchFigures(samples=512), None),
        (None, None),
    ],
)
def test_status_has_the_samples_and_what_they_were_worth_if_the_ranks_choose_their_batch(batch, worth):
    status = progress_status(None, None, report(batch=batch), NOW)
    assert (status.samples, status.effective_samples) == (25_600, worth)


def test_time_alone_changes_nothing():
    first = progress_status(None, None, report(), NOW)
    assert progress_status(first, 100, report(), NOW + timedelta(hours=1)) is first
    assert progress_status(first, 100, None, NOW) is first, "etcd is silent"
    assert progress_status(first, 100, report(step=101, epoch=3), NOW).epoch == 3


def test_pace_is_reported_as_soon_as_it_is_known():
    unknown = progress_status(None, None, report(step_seconds=None), NOW)
    assert (unknown.samples_per_second, unknown.eta) == (None, None)
    assert progress_status(unknown, 100, report(), NOW).samples_per_second == 512.0


def test_the_end_is_that_of_the_scripts_epochs_and_not_of_the_loop_of_one():
    status = progress_status(None, None, report(goal=4000), NOW)
    assert status.of == 4000
    assert datetime.fromisoformat(status.eta) == NOW + timedelta(seconds=1950)
    assert progress_status(None, None, report(goal=500), NOW).of == 1000, "a script may train on after its epochs"


@pytest.mark.parametrize("fields", [{"total_steps": None}, {"step_seconds": None}, {"finished": True}])
def test_no_end_is_estimated_if(fields):
    assert progress_status(None, None, report(**fields), NOW).eta is None


def test_an_end_beyond_the_calendar_is_bounded():
    assert progress_status(None, None, report(total_steps=10**15), NOW).eta.startswith("2129")


@pytest.mark.parametrize(
    "fields",
    [
        {"step_seconds": float("inf")},
        {"step_seconds": float("nan")},
        {"step_seconds": -1.0},
        {"step_seconds": 1e-300, "total_steps": 10**400, "samples": 10**400},
        {"step": -5, "samples": -(10**9)},
    ],
    ids=["infinite", "no number", "negative", "too large", "before the beginning"],
)
def test_the_status_can_be_written_for_any_report(fields):
    status = progress_status(None, None, report(**fields), NOW)
    json.dumps(status.model_dump(mode="json"), allow_nan=False)


def test_zero_steps_are_not_divided_by():
    assert samples_per_second(report(step=0)) is samples_per_second(report(step_seconds=0.0)) is None
    assert eta_seconds(report(step=2000)) == 0


@pytest.mark.parametrize(
    ("reported", "told"),
    [(None, None), (2.3456789, 2.34568), (float("nan"), None), (float("inf"), None), (-1e-9, -1e-9), (0.0, 0.0)],
)
def test_the_loss_is_reported_to_six_digits_if_it_is_finite(reported, told):
    status = progress_status(None, None, report(loss=reported), NOW)
    assert status.loss == told
    json.dumps(status.model_dump(mode="json"), allow_nan=False)
