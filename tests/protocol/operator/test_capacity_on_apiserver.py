"""Sharing nodes of a real API server between real jobs; the test simulates scheduler, kubelet and agents."""

from __future__ import annotations

from typing import Any

import pytest

from node_pool import GPU, Pool

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
