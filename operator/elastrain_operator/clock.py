"""The time of day, in one place, so that a simulation can replace it: the API server's, not that of this machine.

It is read once, from the first answer of the API server, and continued by the monotonic clock. Times in a status, which
another replica may have written on another node, are therefore of one clock, and no step of a node's clock moves a
deadline. An answer shows whole seconds, so replicas agree within about a second.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import structlog

NOTABLE = 2.0
"""Seconds of difference between this machine's clock and the API server's that are logged."""

log = structlog.get_logger(__name__)


class Clock:
    """Seconds of the monotonic clock → the time of day."""

    def __init__(self) -> None:
        self._origin = time.time() - time.monotonic()
        self._is_set = False

    def now(self) -> datetime:
        """The time of day, timezone-aware. Never goes back, except once when the API server is first heard."""
        return datetime.fromtimestamp(self._origin + time.monotonic(), UTC)

    def hear(self, date: str | None) -> None:
        """The ``Date`` of an answer of the API server that has just arrived. Only the first one counts."""
        if self._is_set or date is None:
            return
        try:
            stated = parsedate_to_datetime(date).timestamp() + 0.5  # it is cut to the second
        except ValueError:
            return
        self._is_set = True
        ahead = self._origin + time.monotonic() - stated
        self._origin -= ahead
        if abs(ahead) > NOTABLE:
            log.warning(
                "this machine's clock differs from the API server's, which counts", ahead_seconds=round(ahead, 1)
            )


_clock = Clock()
now = _clock.now
hear = _clock.hear
