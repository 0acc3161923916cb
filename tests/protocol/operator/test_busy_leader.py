"""A leader whose main loop is busy: its Lease is renewed by another thread, until it counts as stuck."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from elastrain_operator.config import LeaseName
from elastrain_operator.kube.access import Tenure
from elastrain_operator.kube.client import NotLeading
from elastrain_operator.leader.election import Elector
from elastrain_operator.leader.lease import Terms
from elastrain_operator.process import Heartbeat, LoopThread

LEASE = LeaseName(namespace="ns", name="operator")


class Leases:
    """The API server's Lease; ``written`` has the times of all writes."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.written: list[float] = []

    async def get(self, lease: LeaseName, seconds: float) -> dict[str, Any] | None:
        return self.body

    async def create(self, lease: LeaseName, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.written.append(time.monotonic())
        self.body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(len(self.written))}}
        return self.body

    replace = create


def lead(terms: Terms, busy: float) -> tuple[Leases, Tenure, str]:
    """Lead, with a main loop that is busy for so many seconds; returns also why it stepped down, if it did."""
    leases, tenure = Leases(), Tenure()

    async def main() -> str:
        loop_thread, heartbeat = LoopThread("lease"), Heartbeat()
        beating = asyncio.create_task(heartbeat.beat())
        elector = Elector(leases, LEASE, "me", tenure, terms, silence=heartbeat.silence)
        await loop_thread.run(elector.acquire())
        await asyncio.sleep(0.1)
        keeping = loop_thread.submit(elector.keep())
        time.sleep(busy)  # noqa: ASYNC251 - the loop can do nothing
        why = keeping.result(0) if keeping.done() else ""
        keeping.cancel()
        beating.cancel()
        await loop_thread.close()
        return why

    return leases, tenure, asyncio.run(main())


def test_the_lease_is_kept_if_the_main_loop_is_busy_for_longer_than_its_duration():
    terms = Terms(duration=1.0)
    leases, tenure, why = lead(terms, busy=3.0)
    assert why == ""
    assert tenure.seconds_left("write") > 0
    gaps = [after - before for before, after in zip(leases.written, leases.written[1:], strict=False)]
    assert len(gaps) > 5
    assert max(gaps) < terms.hold, "no other replica takes over"


def test_a_leader_steps_down_if_its_main_loop_is_stuck():
    """It serves no job, and its thread would renew for ever."""
    _, tenure, why = lead(Terms(duration=1.0, stuck=1.5), busy=3.0)
    assert "the main loop has been stuck for" in why
    with pytest.raises(NotLeading):
        tenure.seconds_left("write")
