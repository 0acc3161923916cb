"""A process: it runs, is stopped (SIGSTOP: what comes meanwhile waits), or is dead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.clock import Clock, Timer


class Process:
    def __init__(self, clock: Clock, name: str, place: str) -> None:
        """``place``: where on the network it is."""
        self.clock = clock
        self.name = name
        self.place = place
        self.alive = True
        self.stopped = 0
        """How many faults stop it at present."""
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped

    def do(self, call: Callable[..., None], *args: Any) -> None:
        """Have the process do something now: later if it is stopped, never if it is dead."""
        if not self.alive:
            return
        if self.stopped:
            self._waiting.append((call, args))
        else:
            call(*args)

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> Timer:
        return self.clock.after(seconds, self.do, call, *args)

    def at(self, when: float, call: Callable[..., None], *args: Any) -> Timer:
        return self.clock.at(when, self.do, call, *args)

    def stop(self) -> None:
        self.stopped += 1

    def go_on(self) -> None:
        self.stopped = max(0, self.stopped - 1)
        if not self.stopped:
            waiting, self._waiting = self._waiting, []
            for call, args in waiting:
                self.do(call, *args)

    def die(self) -> None:
        self.alive = False
        self._waiting.clear()
