"""The tiers of a job's checkpoints on one rank, each with its interval, its thread and the pace of that."""

from __future__ import annotations

import time
from collections.abc import Callable

from elastrain import threads
from elastrain.api.settings import CheckpointSpec, Interval
from elastrain.elastic.checkpoint.folder import Pace
from elastrain.elastic.checkpoint.rules import due
from elastrain.elastic.checkpoint.tier import Tier, tier_at


class Level:
    """One tier. At most one thread works for it at a time."""

    def __init__(self, tier: Tier, interval: Interval | None) -> None:
        """``interval``: None: due whenever the level before it is."""
        self.tier, self._interval = tier, interval
        self.pace = Pace()
        self._saved_step, self._saved_at = 0, time.monotonic()
        self._thread: threads.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether it has a thread."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def busy(self) -> bool:
        """Whether a thread works for it. One that waits for the parts of other ranks does not."""
        return self.alive and not self.pace.waits

    def due(self, step: int, now: float, *, before: bool) -> bool:
        """Whether to save after ``step`` committed steps. ``before``: whether the level before it is due."""
        if self._interval is None:
            return before
        every = self._interval.every_steps, self._interval.every_seconds
        return due(*every, step=step, saved_step=self._saved_step, now=now, saved_at=self._saved_at)

    def attempt(self, step: int, now: float) -> None:
        """A save begins, successful or not. The one before waits for no part any more."""
        self.pace.end()
        self._saved_step, self._saved_at, self.pace = step, now, Pace()

    def run(self, work: Callable[[], object]) -> None:
        """Start a thread, which waits for the one before."""
        before = self._thread

        def after() -> None:
            if before is not None:
                before.join()
            work()

        self._thread = threads.start(after, name=f"elastrain-{self.tier.name}")

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(seconds)


def levels_of(spec: CheckpointSpec | None) -> list[Level]:
    """The levels of a job, the fastest first. Raises ``RuntimeError`` if the library for an object store is not
    installed."""
    if spec is None:
        return []
    levels = [Level(tier_at(spec.path, spec.keep), spec)]
    if (archive := spec.archive) is not None:
        own = archive if archive.every_steps or archive.every_seconds else None
        levels.append(Level(tier_at(archive.path, archive.keep), own))
    return levels
