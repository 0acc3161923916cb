"""Simulated time: a heap of calls. The only clock of a run; nothing sleeps and nothing runs beside anything else."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Timer:
    """A call that is due at some time, and may be called off."""

    __slots__ = ("args", "call", "when")

    def __init__(self, when: float, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.when = when
        self.call: Callable[..., None] | None = call
        self.args = args

    def cancel(self) -> None:
        self.call = None


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Calls made so far."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def at(self, when: float, call: Callable[..., None], *args: Any) -> Timer:
        """Of several calls that are due at one time, the first that was asked for comes first."""
        if when < self.now:
            when = self.now
        timer = Timer(when, call, args)
        self._count += 1
        heappush(self._heap, (when, self._count, timer))
        return timer

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> Timer:
        return self.at(self.now + seconds, call, *args)

    def step(self, until: float) -> bool:
        """Make the next call, if one is due by ``until``; else only let the time pass."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, timer = heappop(heap)
            call = timer.call
            if call is None:
                continue
            self.now = when
            self.events += 1
            call(*timer.args)
            return True
        self.now = until
        return False
