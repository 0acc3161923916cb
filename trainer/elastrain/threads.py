"""Threads, each of which starts within a bound.

``threading.Thread.start`` waits without a bound until the new thread runs. A thread that finds no memory for its first
frame dies before that, and its starter would wait forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

START_SECONDS = 60.0
"""Bound of waiting for a new thread to run, which it does within milliseconds on an idle processor."""


class _Started(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(START_SECONDS if timeout is None else timeout):
            raise RuntimeError(f"a new thread has not begun to run within {START_SECONDS:g} s: no memory is left")
        return True


class Thread(threading.Thread):  # noqa: TID251
    """``start`` raises ``RuntimeError`` if the thread cannot run, also if that shows only after its creation."""

    def __init__(self, target: Callable[..., object], *args: Any, name: str, daemon: bool = True) -> None:
        super().__init__(target=target, args=args, name=name, daemon=daemon)
        self._started = _Started()


def start(target: Callable[..., object], *args: Any, name: str, daemon: bool = True) -> Thread:
    """Run ``target(*args)`` in a thread. Raises as :class:`Thread`."""
    thread = Thread(target, *args, name=name, daemon=daemon)
    thread.start()
    return thread


def start_timer(seconds: float, function: Callable[..., object], *args: Any) -> threading.Timer:  # noqa: TID251
    """Call ``function(*args)`` after ``seconds``, unless it is cancelled. Raises as :class:`Thread`."""
    timer = threading.Timer(seconds, function, args)  # noqa: TID251
    timer.daemon, timer._started = True, _Started()  # type: ignore[attr-defined]
    timer.start()
    return timer
