"""In which steps the ranks of a generation compare their replicas: the same on all of them. Pure.

Not in the first step of a generation, which ends a pause; in the second one, when all that has arrived is in use; then
after every so many steps, and once a state that travelled beside the steps is complete.
"""

from __future__ import annotations

AT_BOUNDARY = 10
"""At a pause or the end of a loop the ranks compare after a tenth of the steps: the loop may be the last one."""


class Schedule:
    """Of one generation, on one rank."""

    def __init__(self, every: int) -> None:
        """``every``: steps between two comparisons; 0: there are none."""
        self._every = every
        self._since = 0
        self._receiving = False

    def enter(self) -> None:
        """A generation begins."""
        self._since, self._receiving = self._every - 1, False

    @property
    def due(self) -> bool:
        """Whether the next step compares, if it can."""
        return 0 < self._every <= self._since

    @property
    def due_at_boundary(self) -> bool:
        """Whether a pause or the end of a loop does."""
        return self._every > 0 and self._since >= max(self._every // AT_BOUNDARY, 1)

    def stepped(self, *, receiving: bool) -> None:
        """A step has counted. ``receiving``: some ranks will still be receiving their state in the next one."""
        self._since = self._every if self._receiving and not receiving else self._since + 1
        self._receiving = receiving

    def compared(self) -> None:
        """The replicas have been compared."""
        self._since = 0
