"""The elector against a fake API server: what it writes, and when it stops."""

from __future__ import annotations

import asyncio
import copy

import pytest

from elastrain_operator.config import LeaseName
from elastrain_operator.kube.access import Tenure
from elastrain_operator.kube.client import ApiError, NotLeading
from elastrain_operator.leader.election import Elector
from elastrain_operator.leader.lease import Terms

LEASE = LeaseName(namespace="here", name="operator")
TERMS = Terms(duration=1.0)


class Server:
    """One Lease with optimistic concurrency. ``down``: requests fail."""

    def __init__(self) -> None:
        self.body: dict | None = None
        self.down = False
        self.writes = 0

    def _check(self) -> None:
        if self.down:
            raise ApiError("reach it", 0, "Unreachable", "connection refused")

    def _store(self, body: dict) -> dict:
        self.writes += 1
        self.body = copy.deepcopy(body)
        self.body["metadata"]["resourceVersion"] = str(self.writes)
        return copy.deepcopy(self.body)

    async def get(self, lease, seconds):
        self._check()
        return copy.deepcopy(self.body)

    async def create(self, lease, body, seconds):
        self._check()
        if self.body is not None:
            raise ApiError("create", 409, "AlreadyExists", "it exists")
        return self._store(body)

    async def replace(self, lease, body, seconds):
        self._check()
        if self.body is None:
            raise ApiError("renew", 404, "NotFound", "it is gone")
        if body["metadata"]["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
            raise ApiError("renew", 409, "Conflict", "it has changed")
        return self._store(body)

    @property
    def holder(self) -> str:
        return self.body["spec"]["holderIdentity"] if self.body else ""

    def steal(self) -> None:
        """Another replica holds it now."""
        stolen = copy.deepcopy(self.body)
        stolen["spec"]["holderIdentity"] = "thief"
        self._store(stolen)


def run(scenario) -> None:
    """Run ``scenario(server, elector_of)``; ``elector_of(name)``: an elector and its tenure."""

    async def main() -> None:
        server = Server()

        def elector_of(name: str) -> tuple[Elector, Tenure]:
            tenure = Tenure()
            return Elector(server, LEASE, name, tenure, TERMS), tenure

        async with asyncio.timeout(20):
            await scenario(server, elector_of)

    asyncio.run(main())


def test_the_first_replica_leads_and_may_write():
    async def scenario(server, elector_of):
        elector, tenure = elector_of("a")
        with pytest.raises(NotLeading, match="cannot write"):
            tenure.seconds_left("write")
        await elector.acquire()
        assert server.holder == elector.holder == "a"
        assert 0 < tenure.seconds_left("write") <= TERMS.hold

    run(scenario)


def test_leader_stops_writing_before_others_may_lead_if_the_api_server_is_away():
    async def scenario(server, elector_of):
        elector, tenure = elector_of("a")
        await elector.acquire()
        server.down = True
        assert "could not be renewed" in await elector.keep()
        with pytest.raises(NotLeading):
            tenure.seconds_left("write")

    run(scenario)


@pytest.mark.parametrize("loss", ["steal", "delete"])
def test_leader_steps_down_and_restores_nothing_if_it_has_lost_the_lease(loss):
    async def scenario(server, elector_of):
        elector, tenure = elector_of("a")
        await elector.acquire()
        if loss == "steal":
            server.steal()
        else:
            server.body = None
        writes = server.writes
        with pytest.raises(NotLeading):
            await elector.prove()
        with pytest.raises(NotLeading):
            await elector.prove()
        await elector.keep()
        await elector.release()
        assert server.writes == writes
        with pytest.raises(NotLeading):
            tenure.seconds_left("write")

    run(scenario)


def test_proof_is_a_renewal():
    async def scenario(server, elector_of):
        elector, _ = elector_of("a")
        await elector.acquire()
        before = server.writes
        await elector.prove()
        assert server.writes == before + 1
        server.down = True
        with pytest.raises(ApiError, match="connection refused"):
            await elector.prove()

    run(scenario)


def test_acquisition_waits_for_the_api_server():
    async def scenario(server, elector_of):
        server.down = True
        elector, _ = elector_of("a")
        waiting = asyncio.create_task(elector.acquire())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        server.down = False
        await waiting
        assert server.holder == "a"

    run(scenario)


def test_lease_shows_the_leader_and_its_start():
    async def scenario(server, elector_of):
        elector, _ = elector_of("pod-1_abc")
        await elector.acquire()
        acquired = server.body["spec"]["acquireTime"]
        await elector.prove()
        spec = server.body["spec"]
        assert spec["holderIdentity"] == "pod-1_abc"
        assert spec["acquireTime"] == acquired < spec["renewTime"]
        assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (1, 0)

    run(scenario)
