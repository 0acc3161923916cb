"""Jobs of several priorities on a real API server with Kubernetes' scheduler, which evicts by priority. Kubelets and
agents are played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from control_plane import ApiServer
from elastrain_operator.pod.gang import COSCHEDULING_LABEL
from node_pool import Pool
from played import Played
from pod_groups import allow, install
from raw_cluster import Cluster

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(300)]

CONTROLLERS, GATES, FLAGS = ("disruption-controller",), "", ("--capacity-pending=1", "--gang-scheduler=coscheduling")


NO_SIGNAL = "no worker waits Pending"


@pytest.fixture
def apiserver(plane: ApiServer) -> ApiServer:
    """The control plane of ``cluster``: the one with a scheduler."""
    return plane


@pytest.fixture
def pool(apiserver: ApiServer, cluster: Cluster) -> Pool:
    """Five GPUs, and a priority class of the test's own."""
    allow(apiserver, cluster.namespace, "coscheduling", of="default")
    made = Pool(cluster)
    made.join("a", 3)
    made.join("b", 2)
    return made


@pytest.fixture
def runs(cluster: Cluster, pool: Pool, scheduled: Callable[..., Played]) -> Callable[..., Played]:
    """``runs(name, policy, **spec)``: a job; ``policy``: of its priority class, empty: it has none."""

    def start(name: str, policy: str, **spec: Any) -> Played:
        chosen = {}
        if policy:
            chosen = {"priorityClassName": f"{name}-{cluster.namespace}"}
            body = {"metadata": {"name": chosen["priorityClassName"]}, "value": 1000, "preemptionPolicy": policy}
            cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        return scheduled(name, pool.template(**chosen), **spec)

    return start


def unbound(cluster: Cluster) -> set[str]:
    return {n for n, p in cluster.pods().items() if not p["spec"].get("nodeName")}


def undisturbed(cluster: Cluster, job: Played) -> dict[str, str]:
    """UIDs of the job's pods by name, none of which is or was to be evicted."""
    pods = {n: p for n, p in cluster.pods().items() if n.startswith(job.keys.job)}
    found = [c["type"] for p in pods.values() for c in p["status"].get("conditions", [])]
    assert "DisruptionTarget" not in found
    assert not job.evicted
    return {n: p["metadata"]["uid"] for n, p in pods.items()}


def test_no_pod_of_a_job_is_the_cause_of_an_eviction_from_another_s_minimum(cluster, pool, runs, eventually):
    low = runs("low", "", minReplicas=2, maxReplicas=2)
    eventually(lambda: len(low.in_generation) == 2, 60, "it has its minimum")
    kept = undisturbed(cluster, low)

    high = runs("high", "PreemptLowerPriority", minReplicas=2, maxReplicas=8)
    eventually(lambda: len(high.in_generation) == 3, 60, "it has the rest")
    eventually(lambda: NO_SIGNAL in cluster.condition("high", "Grown")["message"], 30, "no signal, and why")

    template = cluster.job("high")["spec"]["template"]
    template["metadata"] = {"labels": {"version": "2"}}
    cluster.patch_job("high", template=template)
    eventually(lambda: cluster.condition("high", "UpToDate").get("status") == "True", 90, "its roll-out ends")

    runs("second", "PreemptLowerPriority", minReplicas=2, maxReplicas=2)
    eventually(lambda: cluster.condition("second", "Grown").get("reason") == "WaitingForCapacity", 30, "it waits")
    pool_node = next(iter(p["spec"]["nodeName"] for n, p in cluster.pods().items() if n.startswith("high")))
    lost = [n for n, p in cluster.pods().items() if n.startswith("high") and p["spec"]["nodeName"] == pool_node]
    cluster.merge(f"/api/v1/nodes/{pool_node}", {"spec": {"unschedulable": True}})
    for name in lost:
        high.lose_node(name)
    eventually(
        lambda: cluster.condition("high", "PodsReady")["reason"] == "WaitingForCapacity", 60, "it waits for room"
    )

    assert undisturbed(cluster, low) == kept, "no worker of the minimum is replaced"


def test_a_job_of_a_class_that_never_preempts_keeps_its_signal(cluster, pool, runs, eventually):
    low = runs("low", "", minReplicas=2, maxReplicas=2)
    eventually(lambda: len(low.in_generation) == 2, 60, "it has its minimum")
    high = runs("high", "Never", minReplicas=2, maxReplicas=8)
    eventually(lambda: len(high.in_generation) == 3 and len(unbound(cluster)) == 1, 60, "it has the rest, and a signal")
    pool.join("c", 1)
    eventually(lambda: len(high.in_generation) == 4, 60, "the node that comes for it is used")
    assert not low.evicted


WANTS = {
    "spares": {"minReplicas": 2, "maxReplicas": 2, "warmSpares": 2},
    "a minimum that awaits nodes": {"minReplicas": 4, "maxReplicas": 4},
    "a gang": {"minReplicas": 4, "maxReplicas": 4},
}


@pytest.mark.parametrize("what", WANTS)
def test_what_a_job_wants_beyond_the_room_has_no_worker_of_a_minimum_evicted(
    apiserver, cluster, pool, runs, eventually, what
):
    if what == "a gang":
        install(apiserver, "coscheduling")
    low = runs("low", "", minReplicas=2, maxReplicas=2)
    eventually(lambda: len(low.in_generation) == 2, 60, "it has its minimum")
    kept = undisturbed(cluster, low)
    high, spares = runs("high", "PreemptLowerPriority", **WANTS[what]), what == "spares"
    if spares:
        eventually(lambda: len(cluster.pods()) == 5, 60, "two workers, and a spare in the last free place")
    else:
        eventually(lambda: NO_SIGNAL in cluster.condition("high", "Grown").get("message", ""), 30, "it waits, and why")
        assert len(cluster.pods()) == 2, "no pod is created"
    pool.join("c", 1)
    eventually(lambda: len(cluster.pods()) == 6 and not unbound(cluster), 60, "all have a place with the new node")
    eventually(lambda: len(high.in_generation) == WANTS[what]["minReplicas"], 30, "it trains")
    assert undisturbed(cluster, low) == kept
    labels = [p["metadata"]["labels"] for n, p in cluster.pods().items() if n.startswith("high")]
    assert all(COSCHEDULING_LABEL in found for found in labels) or what != "a gang"
