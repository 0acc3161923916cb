"""A bounded wait that can be cancelled at any time."""

from __future__ import annotations

import asyncio


async def until(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether ``event`` was set within ``seconds``; None: without a limit.

    Not ``asyncio.wait_for``: in Python 3.11 it loses a cancellation that coincides with the event
    (python/cpython#86296), and a cancelled loop would continue.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
