"""Pauses of the loop: functions of the script that run between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Pauses:
    """The functions given to ``job.every()``, in the order in which they were given."""

    def __init__(self) -> None:
        self.running = False
        """Whether one of them runs."""
        self.served = 0
        """How many of them have had their turn since the last committed step."""
        self._functions: list[tuple[int, Callable[[], None]]] = []

    def add(self, steps: int, function: Callable[[], None]) -> None:
        """Run ``function()`` after every ``steps``-th step. Raises ``ValueError``."""
        if steps < 1:
            raise ValueError(f"job.every({steps}, ...): must be at least 1 step")
        self._functions.append((steps, function))

    @property
    def intervals(self) -> tuple[int, ...]:
        """Steps between two pauses, of each function."""
        return tuple(steps for steps, _ in self._functions)

    def run(self, due: Iterable[int]) -> None:
        """Run the functions with these indices."""
        self.served, self.running = len(self._functions), True
        try:
            for index in due:
                self._functions[index][1]()
        finally:
            self.running = False
