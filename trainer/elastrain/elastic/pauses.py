"""Pauses of the loop: functions of the script that run between two steps."""

from __future__ import annotations

from collections.abc import Callable


class Pauses:
    """The functions given to ``job.every()``, in the order in which they were given."""

    def __init__(self) -> None:
        self.running = False
        """Whether one of them runs."""
        self._functions: list[tuple[int, Callable[[], None]]] = []
        self._last = 0
        """Committed steps at the last pause; a rank that enters a generation after it has not to repeat it."""

    def add(self, steps: int, function: Callable[[], None]) -> None:
        """Run ``function()`` after every ``steps``-th step. Raises ``ValueError``."""
        if steps < 1:
            raise ValueError(f"job.every({steps}, ...): must be at least 1 step")
        self._functions.append((steps, function))

    @property
    def intervals(self) -> tuple[int, ...]:
        """Steps between two pauses, of each function."""
        return tuple(steps for steps, _ in self._functions)

    def due(self, step: int) -> bool:
        """Whether a pause follows after ``step`` committed steps."""
        return step != self._last and any(step % steps == 0 for steps, _ in self._functions)

    def run(self, step: int) -> None:
        """Run the functions that are due, if any."""
        if not self.due(step):
            return
        self._last, self.running = step, True
        try:
            for steps, function in self._functions:
                if step % steps == 0:
                    function()
        finally:
            self.running = False
