"""What a rank does next at a step boundary, from values that all ranks of a generation have in common. Pure.

========================  ==============================================================================================
values                    next act
========================  ==============================================================================================
training has stopped      ``END``: all ranks meet, functions of ``job.every`` that are due run, and the loop is left
the loop's last step      the same
a function is due         ``PAUSE``: all ranks meet, the functions run, and the loop goes on
none of these             ``STEP``
========================  ==============================================================================================

Whether the functions have run already after the last committed step is part of the state. It is lost with that state,
and a step that is committed resets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Act(Enum):
    """What follows at a step boundary, once the rank is in a healthy generation."""

    STEP = "a step"
    PAUSE = "a pause of the loop"
    END = "the end of the loop"


@dataclass(frozen=True, slots=True)
class Boundary:
    """A step boundary, equal on all ranks that hold the state."""

    step: int
    """Committed steps."""
    loop_end: int
    """Those at which the loop ends."""
    stopped: bool = False
    """Whether training has ended, because a rank asked for it."""
    pauses: Sequence[int] = ()
    """Steps between two calls of each function of ``job.every``."""
    paused: int = 0
    """How many of these functions have had their turn since the last committed step."""

    @property
    def act(self) -> Act:
        """What follows."""
        if self.stopped or self.step >= self.loop_end:
            return Act.END
        return Act.PAUSE if self.due else Act.STEP

    @property
    def due(self) -> tuple[int, ...]:
        """Indices of the functions that run at this boundary, in their order."""
        due = (i for i, steps in enumerate(self.pauses) if self.step and self.step % steps == 0)
        return tuple(i for i in due if i >= self.paused)
