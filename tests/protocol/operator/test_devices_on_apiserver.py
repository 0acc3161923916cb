"""Workers that claim devices, on a real API server, with Kubernetes' scheduler, which allocates the claims, and its
controllers of claims and of device taints. The tests play the driver (slices), kubelet and agents."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from control_plane import ApiServer
from elastrain_operator.cluster.nodes import DWELL
from node_pool import Pool
from raw_cluster import Cluster

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(600)]

GATES = "DRADeviceTaints=true,DRAPartitionableDevices=true"
CONTROLLERS, FLAGS = ("resourceclaim-controller", "device-taint-eviction-controller"), ()
API = "/apis/resource.k8s.io/v1"


@pytest.fixture
def apiserver(plane: ApiServer) -> ApiServer:
    """The control plane of ``cluster``: the one with a scheduler."""
    return plane


class Driver:
    """A driver of one test: its class, and the devices that it publishes of the test's nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.pool = cluster, Pool(cluster)
        self.name = f"{cluster.namespace}.example.com"
        selector = {"cel": {"expression": f"device.driver == '{self.name}'"}}
        self._make("deviceclasses", "DeviceClass", self.name, {"selectors": [selector]})

    def node(self, name: str, *devices: dict[str, Any], **more: Any) -> str:
        """A node with devices becomes ready. Returns its name."""
        self.pool.join(name, 0)
        full = f"{name}.{self.cluster.namespace}"
        pool = {"name": full, "generation": 1, "resourceSliceCount": 2 if more else 1}
        common = {"driver": self.name, "pool": pool, "nodeName": full}
        self._make("resourceslices", "ResourceSlice", full, {**common, "devices": list(devices)})
        if more:  # counters are in a slice of their own
            self._make("resourceslices", "ResourceSlice", f"{full}.counters", {**common, **more})
        return full

    def taint(self, node: str, device: str, effect: str) -> None:
        """The driver reports that a device fails."""
        body = self.cluster.call("GET", f"{API}/resourceslices/{node}")
        for found in body["spec"]["devices"]:
            if found["name"] == device:
                found["taints"] = [{"key": "xid", "value": "79", "effect": effect}]
        self.cluster.call("PUT", f"{API}/resourceslices/{node}", body)

    def template(self, name: str, count: int = 1, *selectors: str, **more: Any) -> dict[str, Any]:
        """A claim template for devices of the driver; returns a job's template whose workers have such a claim."""
        chosen = [{"cel": {"expression": text}} for text in selectors]
        exactly = {"deviceClassName": self.name, "count": count, "selectors": chosen, **more}
        spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
        path = f"{API}/namespaces/{self.cluster.namespace}/resourceclaimtemplates"
        self.cluster.call("POST", path, {"metadata": {"name": name}, "spec": spec})
        container = {
            "name": "trainer",
            "image": "trainer:1",
            "command": ["train"],
            "resources": {"claims": [{"name": "gpu"}]},
        }
        claims = [{"name": "gpu", "resourceClaimTemplateName": name}]
        selector = {"pool": self.cluster.namespace}
        return {"spec": {"nodeSelector": selector, "resourceClaims": claims, "containers": [container]}}

    def held(self) -> dict[str, set[str]]:
        """Devices by the worker that holds them, as the scheduler has allocated them."""
        found = {}
        for claim in self.cluster.call("GET", f"{API}/namespaces/{self.cluster.namespace}/resourceclaims")["items"]:
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
            users = [u["name"] for u in claim.get("status", {}).get("reservedFor", [])]
            found.update({user: {r["device"] for r in results} for user in users})
        return found

    def _make(self, plural: str, kind: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.cluster.call("POST", f"{API}/{plural}", body)


@pytest.fixture
def driver(cluster: Cluster) -> Driver:
    return Driver(cluster)


def gpus(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, **more} for name in names]


def test_job_grows_into_free_devices_and_gives_them_back(cluster, driver, scheduled, eventually):
    driver.node("one", *gpus("g0", "g1", "g2"))
    template = driver.template("gpu")
    job = scheduled("job", template, minReplicas=1, maxReplicas=8)
    eventually(lambda: len(job.in_generation) == 3, 60, "it has all devices of the node")
    grown = cluster.condition("job", "Grown")
    assert (grown["reason"], grown["message"]) == (
        "NoRoom", f"not grown: 0 deviceclass/{driver.name} idle, 1 needed for the next worker",
    )  # fmt: skip
    driver.node("two", *gpus("h0", "h1"))
    eventually(lambda: len(job.in_generation) == 5, 60, "it grows into the devices of a new node")
    assert sorted(d for found in driver.held().values() for d in found) == ["g0", "g1", "g2", "h0", "h1"]

    other = scheduled("other", template, minReplicas=2, maxReplicas=2)
    eventually(lambda: len(other.in_generation) == 2, 60, "another job gets its minimum")
    assert len(job.in_generation) == 3
    assert cluster.status("job")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}
    assert not [p for p in cluster.pods().values() if not p["spec"].get("nodeName")], "no pod waits in vain"


def test_partitions_of_a_device_are_counted_by_their_shared_counters(cluster, driver, scheduled, eventually):
    def part(name: str, memory: int) -> dict[str, Any]:
        counters = [{"counterSet": "gpu-0", "counters": {"memory": {"value": str(memory)}}}]
        return {"name": name, "attributes": {"memory": {"int": memory}}, "consumesCounters": counters}

    parts = [part("whole", 4), *(part(f"half-{i}", 2) for i in range(2)), *(part(f"part-{i}", 1) for i in range(4))]
    driver.node("one", *parts, sharedCounters=[{"name": "gpu-0", "counters": {"memory": {"value": "4"}}}])
    small = f"device.attributes['{driver.name}'].memory == 1"
    job = scheduled("job", driver.template("part", 1, small), minReplicas=1, maxReplicas=8)
    eventually(lambda: len(job.in_generation) == 4, 60, "four parts are one device")
    whole = driver.template("whole", 1, f"device.attributes['{driver.name}'].memory == 2")
    other = scheduled("other", whole, minReplicas=1, maxReplicas=1)
    eventually(lambda: len(other.in_generation) == 1, 60, "a half is worth two parts")
    assert len(job.in_generation) == 1, "each part is charged as a half, which two may share or not"
    assert {len(d) for d in driver.held().values()} == {1}


def test_worker_leaves_a_device_that_fails_for_another_one(cluster, driver, scheduled, eventually):
    node = driver.node("one", *gpus("g0", "g1", "g2", "g3"))
    job = scheduled("job", driver.template("gpu"), minReplicas=1, maxReplicas=2)
    eventually(lambda: len(job.in_generation) == 2, 60, "two of four devices are held")
    job.commit(10)
    first = next(iter(driver.held()))
    (mild,) = driver.held()[first]
    driver.taint(node, mild, "NoSchedule")
    eventually(
        lambda: first not in job.in_generation, DWELL.total_seconds() + 60, "it leaves when the taint has lasted"
    )
    eventually(lambda: len(job.in_generation) == 2, 60, "its successor has another device")
    assert (job.evicted, cluster.status("job")["restarts"]["infrastructure"]) == ([], 0)

    second = next(name for name in driver.held() if name in job.in_generation)
    (fatal,) = driver.held()[second]
    driver.taint(node, fatal, "NoExecute")
    eventually(lambda: second not in job.in_generation, 60, "it leaves at a step as the cluster deletes its pod")
    eventually(lambda: len(job.in_generation) == 2, 60, "its successor has the last device")
    eventually(lambda: len(driver.held()) == 2, 30, "claims of workers that are gone are released")
    assert {mild, fatal}.isdisjoint(d for found in driver.held().values() for d in found)
    assert all(a & b for a, b in itertools.pairwise(job.formed)), "a worker always had the state"
