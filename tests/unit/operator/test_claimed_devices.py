"""The watches of the cluster's devices: when they begin, and what is known before, without rights, and in between."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import Any

from conditions import until
from elastrain_operator import clock
from elastrain_operator.allocation.resources import CLAIM
from elastrain_operator.allocation.snapshot import Job, Node, Snapshot, Worker, WorkerShape
from elastrain_operator.cluster.nodes import DWELL
from elastrain_operator.devices.watch import API, Devices
from elastrain_operator.kube.client import ApiError
from operator_fixtures import NOW

DRIVER = "gpu.example.com"
GPU = f"deviceclass/{DRIVER}"
NODES = (Node("n0", {"pods": 100}),)
PLAIN = Snapshot(NODES, (Job("a", "ns", "a", 1, 4, WorkerShape((("pods", 1),))),))
CLAIMS = Snapshot(NODES, (Job("a", "ns", "a", 1, 4, WorkerShape((("pods", 1), (f"{CLAIM}ns/t", 1)))),))


def named(name: str, spec: dict[str, Any], **meta: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1", **meta}, "spec": spec}


class Cluster:
    """An API server with two devices on one node, a class, and a template of one namespace; it may refuse."""

    def __init__(self, *taints: dict[str, str]) -> None:
        pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": "g0", "taints": list(taints)}, {"name": "g1"}]
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": 1}}
        self.read: list[str] = []
        self.refused = ""
        self.bodies = {
            "resourceslices": [named("s", {"driver": DRIVER, "pool": pool, "nodeName": "n0", "devices": devices})],
            "deviceclasses": [named(DRIVER, {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]})],
            "resourceclaimtemplates": [named("t", {"spec": {"devices": {"requests": [request]}}}, namespace="ns")],
            "resourceclaims": [],
        }

    async def list_pages(self, path, what, query):
        plural = path.removeprefix(f"{API}/")
        self.read.append(plural)
        if plural == self.refused:
            raise ApiError(f"list {plural}", 403, "Forbidden", "no right")
        yield self.bodies[plural], "1"

    async def changes(self, path, what, query):
        await asyncio.sleep(3600)
        yield {}


def room(devices: Devices, now=NOW) -> int | None:
    return devices.resolve(CLAIMS, (), now).nodes[0].room.get(GPU)


def run(cluster: Cluster, scenario) -> None:
    async def main():
        devices = Devices(cluster, lambda: None)
        task = asyncio.create_task(devices.run())
        try:
            await asyncio.wait_for(scenario(devices), 20)
        finally:
            task.cancel()

    asyncio.run(main())


EXTENDED = Snapshot(NODES, (Job("a", "ns", "a", 1, 4, WorkerShape((("example.com/gpu", 1), ("pods", 1)))),))


def test_extended_resource_that_no_node_has_is_looked_up_among_the_classes():
    cluster = Cluster()
    cluster.bodies["deviceclasses"][0]["spec"]["extendedResourceName"] = "example.com/gpu"

    async def scenario(devices):
        assert devices.problem(EXTENDED) is not None
        await until(lambda: devices.problem(EXTENDED) is None)
        found = devices.resolve(EXTENDED, (), NOW)
        assert (found.nodes[0].room[GPU], dict(found.jobs[0].kind.demand)) == (2, {GPU: 1, "pods": 1})

    run(cluster, scenario)


def test_nothing_is_read_until_a_job_claims_devices():
    cluster = Cluster()

    async def scenario(devices):
        assert devices.problem(PLAIN) is None
        assert devices.resolve(PLAIN, (), NOW) is PLAIN
        await asyncio.sleep(0)
        assert cluster.read == []
        assert devices.problem(CLAIMS) == "the resource slices of the cluster are not listed yet"
        await until(lambda: devices.problem(CLAIMS) is None, "the devices are known")
        assert (sorted(cluster.read), room(devices)) == (sorted(cluster.bodies), 2)

    run(cluster, scenario)


def test_scheduler_decides_if_a_right_is_missing():
    cluster = Cluster()
    cluster.refused = "resourceclaims"

    async def scenario(devices):
        devices.problem(CLAIMS)
        await until(lambda: devices.problem(CLAIMS) is None, "the API server has refused")
        resolved = devices.resolve(CLAIMS, (), NOW)
        assert resolved.jobs[0].unknown == ("resource claims (the resource claims cannot be read)",)
        assert resolved.jobs[0].kind.demand == (("pods", 1),)

    run(cluster, scenario)


def test_template_that_does_not_exist_is_named():
    cluster = Cluster()
    cluster.bodies["resourceclaimtemplates"] = []

    async def scenario(devices):
        devices.problem(CLAIMS)
        await until(lambda: devices.problem(CLAIMS) is None, "the devices are known")
        assert "does not exist" in devices.resolve(CLAIMS, (), NOW).jobs[0].unknown[0]

    run(cluster, scenario)


def test_mild_taint_moves_workers_when_it_has_lasted(monkeypatch):
    monkeypatch.setattr(clock, "now", lambda: NOW)
    cluster = Cluster({"key": "sick", "effect": "NoSchedule"})

    async def scenario(devices):
        devices.problem(CLAIMS)
        await until(lambda: devices.problem(CLAIMS) is None, "the devices are known")
        assert room(devices) == 1, "no new claim gets the device"
        assert devices.next_change(NOW) == DWELL.total_seconds()
        assert not lasting(devices, NOW)
        assert lasting(devices, NOW + DWELL)
        assert devices.next_change(NOW + DWELL) is None
        assert lasting(devices, NOW + DWELL + timedelta(seconds=1))

    run(cluster, scenario)


def lasting(devices: Devices, now) -> bool:
    """Whether a worker on the tainted device should leave."""
    body = {"driver": DRIVER, "pool": "n0", "device": "g0"}
    claim = {
        **named("c", {}, namespace="ns"),
        "status": {"allocation": {"devices": {"results": [body]}}, "reservedFor": [{"uid": "mine"}]},
    }
    devices._claims.values["ns/c"] = devices._claims._parse(claim)
    job = CLAIMS.jobs[0]
    held = dataclasses.replace(job, workers=(Worker("a-0", "n0", job.kind.demand, trains=True, uid="mine"),))
    return bool(devices.resolve(dataclasses.replace(CLAIMS, jobs=(held,)), {"mine"}, now).jobs[0].workers[0].ends)
