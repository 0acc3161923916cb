"""A wait that is bounded, and ends when it is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from elastrain_operator.waiting import until


def test_a_cancellation_counts_if_it_coincides_with_the_event() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(until(event, 60))
        await asyncio.sleep(0)
        event.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())


@pytest.mark.parametrize(("is_set", "seconds"), [(True, 60.0), (False, 0.01), (True, None)])
def test_it_returns_whether_the_event_came_in_time(is_set: bool, seconds: float | None) -> None:
    async def scenario() -> bool:
        event = asyncio.Event()
        if is_set:
            asyncio.get_running_loop().call_soon(event.set)
        return await until(event, seconds)

    assert asyncio.run(scenario()) is is_set
