"""The operator's time of day: the API server's, continued by the monotonic clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from elastrain_operator.clock import Clock


def header(ahead: float) -> str:
    """The ``Date`` of a server whose clock is so many seconds ahead of this machine's."""
    return format_datetime(datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=ahead), usegmt=True)


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
def test_replicas_on_nodes_whose_clocks_differ_show_the_same_time(monkeypatch, ahead):
    one = Clock()
    one.hear(header(ahead))
    skewed = time.time() - 7200
    monkeypatch.setattr(time, "time", lambda: skewed)
    other = Clock()
    other.hear(header(ahead))
    expected = datetime.now(UTC) + timedelta(seconds=ahead)
    assert abs(one.now() - expected) <= timedelta(seconds=1)
    assert abs(one.now() - other.now()) <= timedelta(seconds=1.1)


def test_step_of_this_machine_s_clock_moves_nothing(monkeypatch):
    clock = Clock()
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert timedelta() <= clock.now() - before < timedelta(seconds=1)


def test_only_the_first_answer_counts():
    clock = Clock()
    for told in (None, "yesterday", header(100.0), header(5000.0)):
        clock.hear(told)
    assert abs(clock.now() - datetime.now(UTC) - timedelta(seconds=100)) <= timedelta(seconds=1)
