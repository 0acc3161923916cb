"""Waiting for what a test expects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str) -> None:
    """Return when ``condition`` holds. Fails, naming ``what``, if it does not within 10 s."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.002)
