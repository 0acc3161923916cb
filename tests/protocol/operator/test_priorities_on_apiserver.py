"""Jobs of several priorities on a real API server with Kubernetes' scheduler, which evicts by priority. Kubelets and
agents are played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from control_plane import ApiServer, control_plane
from elastrain_cli.etcd_server import EtcdServer
from kube_scheduling import scheduling
from node_pool import Pool
from operator_process import OperatorProcess, operator_account
from played import Played
from raw_cluster import Cluster
from warm import Warm

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    home = tmp_path_factory.mktemp("priorities")
    with control_plane(home) as server, scheduling(server, home, "disruption-controller"):
        yield server


@pytest.fixture(scope="module")
def _operator(
    plane: ApiServer, light: Warm, etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    home = tmp_path_factory.mktemp("operator")
    access = operator_account(plane, home / "kubeconfig")
    flags = (f"--etcd-endpoints={etcd.endpoint}", "--capacity", "--capacity-hysteresis=0", "--capacity-pending=1")
    operator = OperatorProcess(light, access, home / "operator.log", *flags)
    yield
    operator.stop()


@pytest.fixture
def apiserver(plane: ApiServer) -> ApiServer:
    """The control plane of ``cluster``: the one with a scheduler."""
    return plane


@pytest.fixture
def pool(cluster: Cluster, _operator: None) -> Pool:
    """Five GPUs, and a priority class of the test's own."""
    made = Pool(cluster)
    made.join("a", 3)
    made.join("b", 2)
    return made


@pytest.fixture
def runs(cluster: Cluster, pool: Pool, play: Callable[..., Played]) -> Callable[..., Played]:
    """``runs(name, policy, **spec)``: a job; ``policy``: of its priority class, empty: it has none."""

    def start(name: str, policy: str, **spec: Any) -> Played:
        chosen = {}
        if policy:
            chosen = {"priorityClassName": f"{name}-{cluster.namespace}"}
            body = {"metadata": {"name": chosen["priorityClassName"]}, "value": 1000, "preemptionPolicy": policy}
            cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        player = play(cluster.create_job(name, template=pool.template(**chosen), **spec))
        player.may_start = lambda _name, pod: bool(pod["spec"].get("nodeName"))
        return player

    return start


def unbound(cluster: Cluster) -> set[str]:
    return {n for n, p in cluster.pods().items() if not p["spec"].get("nodeName")}


def test_no_pod_of_a_job_is_the_cause_of_an_eviction_from_another_s_minimum(cluster, pool, runs, eventually):
    low = runs("low", "", minReplicas=2, maxReplicas=2)
    eventually(lambda: len(low.in_generation) == 2, 60, "it has its minimum")
    kept = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    high = runs("high", "PreemptLowerPriority", minReplicas=2, maxReplicas=8)
    eventually(lambda: len(high.in_generation) == 3, 60, "it has the rest")
    said = "no worker waits Pending"
    eventually(lambda: said in cluster.condition("high", "Grown")["message"], 30, "no signal, and why")

    template = cluster.job("high")["spec"]["template"]
    template["metadata"] = {"labels": {"version": "2"}}
    cluster.patch_job("high", template=template)
    eventually(lambda: cluster.condition("high", "UpToDate").get("status") == "True", 90, "its roll-out ends")

    runs("second", "PreemptLowerPriority", minReplicas=2, maxReplicas=2)
    eventually(lambda: cluster.condition("second", "Grown").get("reason") == "MinimumUnavailable", 30, "it waits")
    pool_node = next(iter(p["spec"]["nodeName"] for n, p in cluster.pods().items() if n.startswith("high")))
    lost = [n for n, p in cluster.pods().items() if n.startswith("high") and p["spec"]["nodeName"] == pool_node]
    cluster.merge(f"/api/v1/nodes/{pool_node}", {"spec": {"unschedulable": True}})
    for name in lost:
        high.lose_node(name)
    eventually(
        lambda: cluster.condition("high", "PodsReady")["reason"] == "WaitingForCapacity", 60, "it waits for room"
    )

    now = {n: p for n, p in cluster.pods().items() if n.startswith("low")}
    assert {n: p["metadata"]["uid"] for n, p in now.items()} == kept, "no worker of the minimum is replaced"
    assert not [c for p in now.values() for c in p["status"].get("conditions", []) if c["type"] == "DisruptionTarget"]
    assert not low.evicted


def test_a_job_of_a_class_that_never_preempts_keeps_its_signal(cluster, pool, runs, eventually):
    low = runs("low", "", minReplicas=2, maxReplicas=2)
    eventually(lambda: len(low.in_generation) == 2, 60, "it has its minimum")
    high = runs("high", "Never", minReplicas=2, maxReplicas=8)
    eventually(lambda: len(high.in_generation) == 3 and len(unbound(cluster)) == 1, 60, "it has the rest, and a signal")
    pool.join("c", 1)
    eventually(lambda: len(high.in_generation) == 4, 60, "the node that comes for it is used")
    assert not low.evicted
