"""Bounded waits for conditions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def eventually(
    condition: Callable[[], object],
    within: float = 30.0,
    what: str | Callable[[], str] = "the condition",
    pause: float | None = None,
) -> None:
    """Return when ``condition`` holds. Fails, naming ``what``, after ``within``.

    ``pause``: seconds between two checks; by default 0.01 at first and 0.05 after 2 s, as checks take CPU time.
    """
    began = time.monotonic()
    deadline = began + within
    while not condition():
        late = time.monotonic() > deadline
        assert not late, f"not within {within:g} s: {what() if callable(what) else what}"
        time.sleep(min(0.05, 0.01 + (time.monotonic() - began) / 50) if pause is None else pause)


async def until(condition: Callable[[], object], what: str = "the condition", within: float = 30.0) -> None:
    """The same in an event loop."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.002)
