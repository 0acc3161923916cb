"""Where the workers of queued jobs run: topology, nodes that come and go. The test plays nodes, kubelet and agents."""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from charts import Run
from control_plane import ApiServer
from kube_scheduling import scheduling
from kueue_planes import Operator, install
from kueue_server import GPU
from kueue_world import World, template, true

SHARED = ["--capacity", "--capacity-hysteresis=0"]
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}


@pytest.fixture
def racks(world: World) -> Iterator[str]:
    """Two racks with two nodes of two GPUs each, and a flavor that Kueue places on them; returns the flavor's name."""
    pool = world.namespace
    nodes = [f"{pool}-{n}" for n in range(4)]
    for n, name in enumerate(nodes):
        labels = {"pool": pool, "rack": f"rack-{n // 2}", "kubernetes.io/hostname": name}
        world.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        room = {GPU: "2", "cpu": "64", "pods": "110"}
        world.merge(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})  # not-ready, which a controller takes away
        world.merge(f"/api/v1/nodes/{name}/status", {"status": {"allocatable": room, "conditions": [READY]}})
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    world.make("topologies", "Topology", pool, spec={"levels": levels})
    yield world.flavor("racks", {"pool": pool}, topologyName=pool)
    for name in nodes:
        with contextlib.suppress(urllib.error.HTTPError):
            world.call("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def sharing(operator: Operator, kueue_plane: ApiServer, helm: Run, racks: str) -> Iterator[str]:
    """The operator shares the two racks between jobs without a queue, too. Returns the flavor's name."""

    def restart() -> None:
        operator.kill()
        operator.start()

    install(kueue_plane, helm, "capacity.enabled=true")
    operator.flags += SHARED
    restart()
    yield racks
    del operator.flags[-len(SHARED) :]
    restart()
    install(kueue_plane, helm)


def has_a_node(_name: str, pod: dict[str, Any]) -> bool:
    return bool(pod["spec"].get("nodeName"))


def is_ungated(_name: str, pod: dict[str, Any]) -> bool:
    return not pod["spec"].get("schedulingGates")


def test_topology_of_the_base_is_kept_and_extras_have_a_place_of_their_own(world, racks, play, eventually):
    world.queue("lq", {racks: 8})
    annotations = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    made = template(annotations=annotations)
    job = world.submit("placed", 3, 8, template=made)
    play(job).may_start = is_ungated
    eventually(lambda: world.training(job) == 8, 60, "base and extras are placed")
    nodes = {name: p["spec"]["nodeSelector"]["kubernetes.io/hostname"] for name, p in world.pods().items()}
    base = world.charged(job)[world.base_name(job)]
    racks_of_base = {nodes[name].rpartition("-")[2] in "01" for name in base}
    assert (len(base), len(racks_of_base)) == (3, 1), "the base is in one rack"
    assert all(list(nodes.values()).count(node) == 2 for node in set(nodes.values())), "no node has more than its room"


def test_an_admitted_extra_makes_a_node_come_and_an_empty_node_goes(world, play, eventually):
    """An autoscaler adds a node for a pod that no node holds, and removes one whose pods it may evict."""
    world.plain(4)
    job = world.submit("scaled", 1, 3)
    player = play(job)
    nodes = {"n0": "scaled-0"}

    def has_a_node(name: str, _pod: dict[str, Any]) -> bool:
        return name in nodes.values()

    player.may_start = has_a_node
    eventually(lambda: world.training(job) == 1, 60, "the base trains on the only node")
    eventually(lambda: len(world.pods()) == 3, 30, "admitted workers are created although no node has room")
    for pod in sorted(world.pods().keys() - nodes.values()):
        nodes[f"n-{pod}"] = pod
    eventually(lambda: world.training(job) == 3, 30, "nodes came, and the job has grown")
    keeps = {
        n: p["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"]
        for n, p in world.pods().items()
    }
    assert "true" in keeps.values(), "an autoscaler may take a node back"
    world.patch_job("scaled", replicas=1)
    eventually(lambda: len(world.pods()) == 1, 30, "the other nodes are empty")
    eventually(lambda: set(world.workloads(job)) == {world.base_name(job)}, 30, "and their quota is free")
    assert true(world.base(job), "Admitted")


@pytest.mark.nightly
def test_a_job_without_a_queue_leaves_room_for_admitted_workers_that_no_node_has_yet(world, sharing, play, eventually):
    world.queue("lq", {sharing: 3})
    queued = world.submit("queued", 1, 8)
    play(queued).may_start = lambda _name, _pod: False  # no scheduler binds them
    eventually(lambda: len(world.pods()) == 3, 40, "three workers are admitted and created")
    free = world.create_job("free", maxReplicas=8, template=template())
    play(free)
    eventually(lambda: world.training(free) == 5, 40, "it gets the rest of 8 GPUs")
    assert world.condition("free", "Grown")["reason"] == "NoRoom"
    world.merge(world.job_path("queued"), {"spec": {"suspend": True}})
    eventually(lambda: world.training(free) == 8, 40, "their room is free when they have left")


@pytest.mark.nightly
def test_admitted_workers_without_room_have_no_worker_of_a_minimum_evicted(
    world, sharing, kueue_plane, play, eventually, tmp_path
):
    urgent = f"urgent-{world.namespace}"
    world.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": urgent}, "value": 1000})
    world.queue("lq", {world.flavor("nodes", {"pool": world.namespace}): 8})
    on = {"nodeSelector": {"pool": world.namespace}}
    plain, given = template(), template()
    plain["spec"] |= on
    given["spec"] |= {**on, "priorityClassName": urgent}
    with scheduling(kueue_plane, tmp_path, "disruption-controller"):
        low = world.create_job("low", minReplicas=6, maxReplicas=6, template=plain)
        played = play(low)
        played.may_start = has_a_node
        eventually(lambda: world.training(low) == 6, 60, "its minimum has six of eight GPUs")
        high = world.submit("high", 1, 8, template=given)
        play(high).may_start = has_a_node
        eventually(lambda: world.training(high) == 2, 60, "base and extras have the rest")
        eventually(lambda: world.reserved() > 2, 60, "Kueue has admitted more")
        world.merge(world.job_path("high"), {"spec": {"maxReplicas": 7}})
        eventually(lambda: world.job("high")["status"]["observedGeneration"] == 2, 30, "a pass later")
        pods = world.pods().values()
        assert len([p for p in pods if p["spec"].get("nodeName")]) == len(pods) == 8, "none waits Pending"
        conditions = [c["type"] for p in pods for c in p["status"].get("conditions", ())]
        assert "DisruptionTarget" not in conditions
        assert not played.evicted
