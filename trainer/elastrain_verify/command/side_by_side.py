"""Runs side by side: as many at a time as processors are idle. Their outcomes come in the order of the plan."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from elastrain_verify.runs import Run

T = TypeVar("T")
MOST = 4
"""More would fill the memory of small machines."""


def idle_processors() -> int:
    """From 1 to :data:`MOST`."""
    idle = len(os.sched_getaffinity(0)) - os.getloadavg()[0]
    return max(1, min(MOST, round(idle)))


def side_by_side(
    runs: Sequence[Run], execute: Callable[[Run], T], most: int
) -> Generator[tuple[Run, Future[T]], None, None]:
    """Each run with its outcome, which may be under way. A run begins as an earlier one ends."""
    left, begun = deque(runs), deque[tuple[Run, Future[T]]]()
    with ThreadPoolExecutor(most) as pool:
        while left or begun:
            while left and len(begun) <= most:
                begun.append((left[0], pool.submit(execute, left.popleft())))
            try:
                yield begun.popleft()
            except GeneratorExit:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
