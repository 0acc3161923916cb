"""Limits the processor time that a save takes from the training that runs beside it."""

from __future__ import annotations

import threading
import time

SHARE = 0.25
"""Part of its time that the writing thread works while nothing waits for the save. Several steps then take a little
longer, instead of one that takes twice as long."""
REST_SECONDS = 30.0
"""Bound of all rests of one save: a save of many gigabytes takes minutes by itself, and should end before the next."""


class Pace:
    """The pace of one save. Its thread calls :meth:`rest` between two pieces of work, any thread :meth:`hurry`."""

    def __init__(self, share: float = SHARE) -> None:
        """``share``: part of its time that the thread works, in (0, 1]."""
        self._rest = 1 / share - 1
        self._left = REST_SECONDS
        self._hurry = threading.Event()
        self._worked = 0.0

    def begin(self) -> None:
        """The thread's work begins now."""
        self._worked = time.thread_time()

    def rest(self) -> None:
        """Sleep in proportion to the processor time used since the last rest; time spent waiting for a disk is free."""
        seconds = min((time.thread_time() - self._worked) * self._rest, self._left)
        self._left -= seconds
        self._hurry.wait(seconds)
        self._worked = time.thread_time()

    def hurry(self) -> None:
        """End the present rest and allow no further one: training waits for the save. Any thread."""
        self._hurry.set()
