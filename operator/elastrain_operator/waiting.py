"""A wait that is bounded and can be cancelled at any moment."""

from __future__ import annotations

import asyncio


async def until(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether ``event`` was set within ``seconds``; None: without a limit.

    Not by ``asyncio.wait_for``: that of Python 3.11 forgets a cancellation that comes together with the event
    (python/cpython#86296), and a loop that is to end would go on.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
