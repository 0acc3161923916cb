"""Sharing nodes of a real API server between real jobs; the test simulates scheduler, kubelet and agents."""

from __future__ import annotations

import urllib.error
from typing import Any

import pytest

from node_pool import GPU, Pool
from raw_cluster import Cluster

pytestmark = pytest.mark.apiserver


@pytest.fixture
def pool(cluster, operator_process, operator_factory, etcd):
    operator_process.stop()  # it serves all namespaces, and does not share them out
    operator_factory(etcd, cluster.namespace, "--capacity", "--capacity-hysteresis=0")
    return Pool(cluster)


def test_elastic_job_grows_into_a_new_node_and_yields_to_a_higher_priority(cluster, pool, play, eventually):
    def trains(name: str, workers: int, what: str) -> None:
        eventually(lambda: cluster.status(name).get("readyReplicas") == workers, 60, what)

    pool.join("one", 2)
    low = play(cluster.create_job("low", minReplicas=1, maxReplicas=4, template=pool.template()))
    low.may_start = pool.bound
    trains("low", 2, "the job starts with what there is")
    grown = cluster.condition("low", "Grown")
    assert (grown["status"], grown["reason"]) == ("False", "NoRoom")
    assert grown["message"] == f"not grown: 0 {GPU} idle, 1 needed for the next worker"

    pool.join("two", 1)
    trains("low", 3, "the job grows into the new node")
    uids = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    high = f"high-{cluster.namespace}"
    cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": high}, "value": 1000})
    important = pool.template(priorityClassName=high)
    player = play(cluster.create_job("important", minReplicas=2, maxReplicas=2, template=important))
    player.may_start = pool.bound
    trains("important", 2, "the important job gets its minimum")
    trains("low", 1, "the other keeps its own")
    kept = {n: p["metadata"]["uid"] for n, p in cluster.pods().items() if n.startswith("low")}
    assert kept.items() <= uids.items(), "the existing worker stays"
    assert cluster.status("low")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}

    cluster.merge(cluster.job_path("low") + "/scale", {"spec": {"replicas": 2}})
    cluster.patch_job("important", suspend=True)
    trains("low", 2, "kubectl scale bounds it though three are free")
    cluster.patch_job("low", replicas=None)
    trains("low", 3, "without replicas it is elastic again")


def test_no_worker_leaves_for_a_job_whose_pods_are_refused(cluster, pool, play, eventually):
    pool.join("one", 2)
    low = play(cluster.create_job("low", minReplicas=1, maxReplicas=4, template=pool.template()))
    low.may_start = pool.bound
    eventually(lambda: cluster.status("low").get("readyReplicas") == 2, 60, "the job starts with what there is")
    uids = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.merge(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": labels}})
    template = pool.template()
    template["spec"]["containers"][0]["securityContext"] = {"runAsUser": 0}
    eventually(lambda: refuses(cluster, template["spec"]), 30, "the API server's cache has the namespace's label")
    refused = cluster.create_job("refused", minReplicas=1, maxReplicas=1, template=template)

    eventually(lambda: cluster.condition("refused", "Grown").get("reason") == "GrantUnused", 60, "it says why it waits")
    assert "violates PodSecurity" in cluster.condition("refused", "Grown")["message"]
    assert cluster.condition("refused", "PodsReady")["reason"] == "AdmissionDenied"
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()} == uids, "no pod was created, and none has left"
    assert cluster.status("low")["desiredReplicas"] == 2

    cluster.merge(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": {next(iter(labels)): None}}})
    play(refused).may_start = pool.bound
    eventually(lambda: cluster.status("refused").get("readyReplicas") == 1, 90, "it starts when the policy has changed")


def test_no_worker_leaves_for_a_minimum_that_a_quota_admits_in_part(cluster, pool, play, eventually):
    pool.join("one", 4)
    low = play(cluster.create_job("low", minReplicas=1, maxReplicas=4, template=pool.template()))
    low.may_start = pool.bound
    eventually(lambda: cluster.status("low").get("readyReplicas") == 4, 60, "the job has all")
    uids = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    urgent = f"urgent-{cluster.namespace}"
    cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": urgent}, "value": 1000})
    quotas, hard = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas", {f"requests.{GPU}": "2"}
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [urgent]}
    spec = {"hard": hard, "scopeSelector": {"matchExpressions": [scope]}}
    cluster.call("POST", quotas, {"metadata": {"name": "urgent"}, "spec": spec})
    # In a complete cluster a controller writes this status.
    cluster.merge(f"{quotas}/urgent/status", {"status": {"hard": hard, "used": {f"requests.{GPU}": "0"}}})
    gang = cluster.create_job("gang", minReplicas=3, maxReplicas=3, template=pool.template(priorityClassName=urgent))

    def grown() -> dict[str, Any]:
        return cluster.condition("gang", "Grown")

    eventually(lambda: "ResourceQuota" in grown().get("message", ""), 60, "the quota is named")
    assert grown()["message"].endswith(
        f"2 of 2 requests.{GPU} of ResourceQuota {cluster.namespace}/urgent used, 1 more needed"
    )
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()} == uids, "no pod was created, and none has left"
    assert cluster.status("low")["desiredReplicas"] == 4

    more = {f"requests.{GPU}": "3"}
    cluster.merge(f"{quotas}/urgent", {"spec": {"hard": more}})
    cluster.merge(f"{quotas}/urgent/status", {"status": {"hard": more}})
    play(gang).may_start = pool.bound
    eventually(lambda: cluster.status("gang").get("readyReplicas") == 3, 90, "it starts when the quota is raised")
    assert cluster.status("low")["readyReplicas"] == 1


def test_no_worker_leaves_for_a_minimum_that_fits_by_its_template_and_not_as_it_is_admitted(
    cluster, pool, play, eventually
):
    pool.join("one", 3)
    low = play(cluster.create_job("low", minReplicas=1, maxReplicas=4, template=pool.template()))
    low.may_start = pool.bound
    eventually(lambda: cluster.status("low").get("readyReplicas") == 3, 60, "the job has all")
    uids = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    heavy = f"heavy-{cluster.namespace}"
    runtime = {"metadata": {"name": heavy}, "handler": "heavy", "overhead": {"podFixed": {"cpu": "6"}}}
    cluster.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)  # nodes have eight cores
    gang = cluster.create_job("gang", minReplicas=2, maxReplicas=2, template=pool.template(runtimeClassName=heavy))

    def grown() -> dict[str, Any]:
        return cluster.condition("gang", "Grown")

    eventually(lambda: "admission" in grown().get("message", ""), 60, "what admission has changed is named")
    assert grown()["reason"] == "WaitingForCapacity"
    assert grown()["message"].endswith("; admission changes its pods: cpu 0 → 6 (with overhead)")
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()} == uids, "no pod was created, and none has left"

    pool.join("two", 1)
    play(gang).may_start = pool.bound
    eventually(lambda: cluster.status("gang").get("readyReplicas") == 2, 90, "it starts with another node")
    assert cluster.status("low")["readyReplicas"] == 2


def refuses(cluster: Cluster, spec: dict[str, Any]) -> bool:
    """Whether the API server refuses such a pod."""
    try:
        cluster.call("POST", f"{cluster.pods_path}?dryRun=All", {"metadata": {"name": "tried"}, "spec": spec})
    except urllib.error.HTTPError as error:
        return error.code == 403
    return False
