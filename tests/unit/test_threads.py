"""A thread that cannot run: its starter does not wait for it without a bound."""

from __future__ import annotations

import threading

import pytest

from elastrain import threads


@pytest.mark.parametrize("begin", [lambda: threads.start(print, name="x"), lambda: threads.start_timer(9, print)])
def test_the_starter_of_a_thread_gets_an_error_if_the_thread_dies_before_it_runs(begin, monkeypatch) -> None:
    monkeypatch.setattr(threads, "START_SECONDS", 0.05)
    monkeypatch.setattr(threading.Thread, "_bootstrap", lambda _self: None)
    with pytest.raises(RuntimeError, match="no memory is left"):
        begin()


def test_a_thread_runs_its_target_and_is_joined() -> None:
    seen: list[int] = []
    threads.start(seen.append, 1, name="x").join(10)
    assert seen == [1]
