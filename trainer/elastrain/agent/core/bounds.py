"""Until when an agent waits for its ranks. None: there is no bound now."""

from __future__ import annotations

from dataclasses import dataclass

STRAGGLER_SECONDS = 60.0
"""How long ranks of one worker may go on after another of them has ended its script without finishing its loop."""
KILL_SECONDS = 2.0
"""From SIGTERM to SIGKILL where nothing is left to save."""


@dataclass(slots=True)
class Bounds:
    """Of one agent, in its monotonic seconds."""

    drain: float | None = None
    """Set by a signal. A leave that the target asks for has no bound here: who asked bounds it, by a signal."""
    exit: float | None = None
    """Set when the first rank was told to exit."""
    stragglers: float | None = None
    """Set while ranks go on after another one has deserted them."""
    kill: float | None = None
    """Set when the ranks were asked to end at last."""

    def first(self) -> float | None:
        """The first of those under which ranks still train."""
        return min((b for b in (self.drain, self.exit, self.stragglers) if b is not None), default=None)

    def watch_stragglers(self, deserted: bool, now: float) -> None:
        """``deserted``: some ranks wait, and one that they wait for has ended without a word."""
        if not deserted:
            self.stragglers = None
        elif self.stragglers is None:
            self.stragglers = now + STRAGGLER_SECONDS


def passed(bound: float | None, now: float) -> bool:
    """Whether there is a ``bound`` and it is over."""
    return bound is not None and now >= bound
