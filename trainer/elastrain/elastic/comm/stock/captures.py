"""Keeps captures of CUDA graphs apart from calls of other threads that a capture does not bear.

While a thread captures a graph in CUDA's "global" mode, torch's default, a call of any other thread that may wait for
the device (to allocate or free its memory, for instance) fails, and spoils the capture: cudaStreamCaptureMode in CUDA's
documentation. torch's allocator refuses to release its blocks during a capture in any mode. NCCL makes such calls as a
communicator begins and ends, which happens beside the script's steps.

torch's captures (``torch.cuda.graph``, ``make_graphed_callables``, ``torch.compile(mode="reduce-overhead")``) begin and
end by two methods, which are watched. A capture that an extension begins by itself is not seen.

Copies of the state and of sums run beside captures: :func:`relaxed`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from elastrain.elastic import torch_private

log = structlog.get_logger(__name__)

APART_SECONDS = 10.0
"""Bound of the wait of a capture for calls, and of a call for captures. A capture records, and waits for nothing: one
that lasts longer was left behind by an exception."""
STUCK_SECONDS = 30.0
"""A call of this age is not waited for: it hangs inside NCCL."""


class Captures:
    """Of one process; any thread."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        """What waits: calls, and captures."""
        self._changed = threading.Condition()
        self._captures = 0
        self._calls: dict[object, float] = {}
        """When they began."""
        self._watched = False

    def watch(self) -> None:
        """From now on captures keep apart from calls. Idempotent."""
        with self._changed:
            watched, self._watched = self._watched, True
        if not watched:
            torch_private.watch_captures(self.begins, self.ended)

    def begins(self) -> None:
        """A capture is about to begin, on this thread: returns when no call is under way, within ``APART_SECONDS``."""
        with self._changed:
            self._wait("a capture of a CUDA graph", lambda: not self._under_way())
            self._captures += 1

    def ended(self) -> None:
        """A capture is over, or has failed."""
        with self._changed:
            self._captures = max(0, self._captures - 1)
            self._changed.notify_all()

    @contextmanager
    def exclude(self, what: str) -> Iterator[None]:
        """Around a call ``what``: begins when no graph is captured, within ``APART_SECONDS``."""
        call = object()
        with self._changed:
            self._wait(what, lambda: not self._captures)
            self._calls[call] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._calls[call]
                self._changed.notify_all()

    def _under_way(self) -> bool:
        return any(time.monotonic() - began < STUCK_SECONDS for began in self._calls.values())

    def _wait(self, what: str, free: Callable[[], bool]) -> None:
        if free():
            return
        self.waiting.append(what)
        try:
            if not self._changed.wait_for(free, APART_SECONDS):
                others = "a capture of a CUDA graph" if self._captures else "a call of NCCL"
                log.warning("waited in vain, and begins beside it", what=what, beside=others, seconds=APART_SECONDS)
        finally:
            self.waiting.remove(what)


_RELAXED = 2
"""``CU_STREAM_CAPTURE_MODE_RELAXED``."""


@contextmanager
def relaxed() -> Iterator[None]:
    """Around copies of this thread, on a stream of its own, and its waits for events: a capture of another thread bears
    them.

    By the driver's ``cuThreadExchangeStreamCaptureMode``, as NCCL does around its own allocations. Does nothing without
    NVIDIA's driver.
    """
    before = _exchange(_RELAXED)
    try:
        yield
    finally:
        _exchange(before)


def _exchange(mode: int) -> int:
    """Set how captures bear this thread's calls. Returns what was set before."""
    value = ctypes.c_int(mode)
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(value))
    return value.value


CAPTURES = Captures()
"""Those of this process."""
