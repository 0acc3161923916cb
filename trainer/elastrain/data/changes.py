"""Changes of the script at a step: run once in each process, in order, before the first step at or behind theirs.

A process that joins later, or resumes, has not computed the step. It makes the changes that the received state has seen
before that state is loaded, so that what they set in tracked objects is as the state has it, and all others as here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Change:
    step: int
    function: Callable[[], None]
    done: bool = False
    """In this process."""


class Changes:
    """The functions given to ``job.at()``. For the training thread."""

    def __init__(self) -> None:
        self.seen = -1
        """The changes of this step, and of those before, are a part of the state."""
        self.running = False
        """Whether one of them runs."""
        self._made = False
        """Whether one was made since the last step."""
        self._changes: list[_Change] = []

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, step: int, function: Callable[[], None]) -> None:
        """Run ``function()`` before the first step for which ``step`` steps or more are committed."""
        self._changes.append(_Change(step, function))
        self._changes.sort(key=lambda change: change.step)  # stable: in the order of the calls within a step

    def before_step(self, step: int) -> bool:
        """A step follows after ``step`` committed ones: make the changes that are due.

        Returns whether there were any, or with a state that was loaded, since the step before.
        """
        self.seen = max(self.seen, step)
        self._make_until(step)
        made, self._made = self._made, False
        return made

    def before_receive(self, seen: int, *, keep: bool) -> None:
        """A state that has ``seen`` the changes up to this step is about to arrive in the tensors of the objects.

        ``keep``: they keep the state that they have until :meth:`before_load`.
        """
        if not keep:
            self.before_load(seen)

    def before_load(self, seen: int) -> None:
        """A state is about to be loaded that has ``seen`` the changes up to this step.

        If it is older than what this process has done, later changes are made again when their step comes.
        """
        self.seen = seen
        for change in self._changes:
            change.done &= change.step <= seen
        self._make_until(seen)

    def _make_until(self, step: int) -> None:
        self.running = True
        try:
            for change in self._changes:
                if change.step <= step and not change.done:
                    change.done = self._made = True
                    change.function()
        finally:
            self.running = False
