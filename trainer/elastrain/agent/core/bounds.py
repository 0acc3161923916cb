"""Deadlines of an agent's waits for its ranks. None: no deadline applies now."""

from __future__ import annotations

from dataclasses import dataclass

STRAGGLER_SECONDS = 60.0
"""Seconds that the other ranks of a worker may continue after one rank's script ended before its loop did."""
STAND_BY_SECONDS = 600.0
"""Seconds that the other ranks of a worker keep their processes for a killed one to start and be ready again. Then all
start again."""
KEEP_SECONDS = 300.0
"""Seconds that ranks have to keep their state before they start again. Some may still run their scripts."""
FAILING_SECONDS = 10.0
"""Seconds that a rank's process may take to end after a failure of its own."""
KILL_SECONDS = 2.0
"""Seconds from SIGTERM to SIGKILL if no state is left to save."""


@dataclass(slots=True)
class Bounds:
    """One agent's deadlines, in its monotonic seconds."""

    drain: float | None = None
    """Set by a signal. A leave that the target requests has no deadline here: the operator enforces one by a signal."""
    exit: float | None = None
    """Set when the first rank was sent :class:`Exit`."""
    stragglers: float | None = None
    """Set while ranks wait for a rank whose script has ended."""
    stand_by: float | None = None
    """Set while ranks stand by for one that starts again."""
    keep: float | None = None
    """Set while ranks keep their state, to start again."""
    failing: float | None = None
    """Set while a process should end by a failure of its own."""
    kill: float | None = None
    """Set when the ranks received the signal that ends them."""

    def first(self) -> float | None:
        """The earliest deadline that applies while ranks train."""
        return min((b for b in self._all() if b is not None), default=None)

    def _all(self) -> tuple[float | None, ...]:
        return self.drain, self.exit, self.stragglers, self.stand_by, self.keep, self.failing

    def watch_failing(self, failing: bool, now: float) -> None:
        """``failing``: a rank's process should end by a failure of its own."""
        self.failing = (self.failing or now + FAILING_SECONDS) if failing else None

    def watch_keeping(self, keeping: bool, now: float) -> None:
        """``keeping``: ranks keep their state, to start again."""
        self.keep = (self.keep or now + KEEP_SECONDS) if keeping else None

    def watch_stragglers(self, deserted: bool, now: float) -> None:
        """``deserted``: ranks wait for one that ended without ``Left`` or ``Finished``."""
        if not deserted:
            self.stragglers = None
        elif self.stragglers is None:
            self.stragglers = now + STRAGGLER_SECONDS


def passed(bound: float | None, now: float) -> bool:
    """Whether there is a ``bound`` and it has passed."""
    return bound is not None and now >= bound
