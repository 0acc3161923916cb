"""How much of the processor a save may take from the training that it runs beside."""

from __future__ import annotations

import threading
import time

SHARE = 0.25
"""Part of its time that the writing thread works where nobody waits for the save: a step beside it takes a little
longer, and a few of them do, instead of one that takes twice as long."""
REST_SECONDS = 30.0
"""All rests of a save together, at most: one of many gigabytes takes minutes as it is, and should not miss the next."""


class Pace:
    """Of one save: its thread calls :meth:`rest` between two pieces of work, another one may call :meth:`hurry`."""

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
        """Sleep for as long as the processor time used since the last rest is worth. Waiting for a disk is no work."""
        seconds = min((time.thread_time() - self._worked) * self._rest, self._left)
        self._left -= seconds
        self._hurry.wait(seconds)
        self._worked = time.thread_time()

    def hurry(self) -> None:
        """Somebody waits for the save: no rest any more, nor the one that has begun. Any thread."""
        self._hurry.set()
