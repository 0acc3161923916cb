"""Pods that stay Terminating, on a real API server with Kubernetes' scheduler: a finalizer holds them, or their node is
lost. Kubelets and agents are played. Each wait is that of the deadline: the grace of 1 s, and 30 s."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from control_plane import ApiServer
from node_pool import Pool
from played import Played
from raw_cluster import Cluster

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(400)]

CONTROLLERS, GATES, FLAGS = ("-*",), "", ()
DRIVER = "example.com/driver"
DELETED, ASKED = 40, 80
"""Seconds within which a pod is overdue that was deleted, or that was asked to leave."""


@pytest.fixture
def apiserver(plane: ApiServer) -> ApiServer:
    """The control plane of ``cluster``: the one with a scheduler."""
    return plane


@pytest.fixture
def pool(cluster: Cluster) -> Pool:
    return Pool(cluster)


@pytest.fixture
def runs(pool: Pool, scheduled: Callable[..., Played], eventually: Callable[..., None]) -> Callable[..., Played]:
    """``runs(name, workers, **spec)``: a job of which so many workers train."""

    def start(name: str, workers: int, **spec: int) -> Played:
        player = scheduled(name, pool.template(terminationGracePeriodSeconds=1), **spec)
        eventually(lambda: len(player.in_generation) == workers, 60, f"{name} trains")
        return player

    return start


def hold(player: Played, *workers: str) -> None:
    """A driver holds these pods: their containers do not end."""
    player.hung |= set(workers)
    for name in workers:
        player.cluster.merge(f"{player.cluster.pods_path}/{name}", {"metadata": {"finalizers": [DRIVER]}})


def let_go(player: Played, *workers: str) -> None:
    player.hung -= set(workers)
    for name in player.cluster.pods().keys() & set(workers):
        player.cluster.merge(f"{player.cluster.pods_path}/{name}", {"metadata": {"finalizers": None}})


def names(cluster: Cluster, job: str, kind: str) -> bool:
    """Whether a condition names an overdue pod of ``job``, with its node, since when, and its finalizers."""
    told = rf"overdue: pod {job}-\d on node [ab]\.\S+, deleted at 2\S+ \(finalizers {DRIVER}\)"
    return re.search(told, cluster.condition(job, kind).get("message", "")) is not None


def test_conditions_name_the_overdue_pod_for_which_they_wait(cluster, pool, runs, eventually):
    pool.join("a", 3)
    job = runs("job", 2, minReplicas=2, maxReplicas=2)
    hold(job, *job.in_generation)
    template = {**cluster.job("job")["spec"]["template"], "metadata": {"labels": {"version": "2"}}}
    cluster.patch_job("job", template=template)
    for kind, reason in (("UpToDate", "RollingOut"), ("PodsReady", "Draining")):
        eventually(lambda kind=kind: names(cluster, "job", kind), ASKED, f"{kind} names it")
        assert cluster.condition("job", kind)["reason"] == reason
    cluster.patch_job("job", suspend=True)
    eventually(lambda: names(cluster, "job", "Suspended"), 30, "Suspended names it")
    assert cluster.condition("job", "Suspended")["status"] == "False", "its kubelet answers: its processes may live"
    let_go(job, *job.hung)
    eventually(lambda: cluster.condition("job", "Suspended")["status"] == "True", 60, "it ends with the pods")


def test_room_of_an_overdue_pod_is_promised_to_no_job(cluster, pool, runs, eventually):
    pool.join("a", 1)
    pool.join("b", 2)
    big = runs("big", 3, minReplicas=1, maxReplicas=3)
    hung = next(n for n, p in cluster.pods().items() if p["spec"]["nodeName"].startswith("a."))
    hold(big, hung)
    cluster.call("DELETE", f"{cluster.pods_path}/{hung}")
    runs("new", 1, minReplicas=1, maxReplicas=1)  # a worker of the node that answers leaves for it
    assert len(big.in_generation) == 1
    eventually(lambda: names(cluster, "big", "Grown"), DELETED, "what it lacks is named")
    let_go(big, hung)
    eventually(lambda: len(big.in_generation) == 2, 60, "it has the room when the pod is gone")


def test_an_overdue_pod_of_a_lost_node_holds_neither_a_roll_out_nor_a_suspension(cluster, pool, runs, eventually):
    for node in ("a", "b"):
        pool.join(node, 1)
    job = runs("job", 2, minReplicas=2, maxReplicas=2)
    hold(job, *job.in_generation)
    pool.join("c", 3)
    template = {**cluster.job("job")["spec"]["template"], "metadata": {"labels": {"version": "2"}}}
    cluster.patch_job("job", template=template)
    eventually(lambda: job.target().leaving, 60, "the first is asked to leave")
    (lost,) = job.target().leaving
    let_go(job, *job.hung - {lost})
    silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    node = cluster.pods()[lost]["spec"]["nodeName"]
    cluster.merge(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [silent]}})
    marked = {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}
    cluster.merge(f"{cluster.pods_path}/{lost}/status", {"status": {"conditions": marked}})
    eventually(lambda: cluster.condition("job", "UpToDate").get("status") == "True", ASKED + 60, "its roll-out ends")
    cluster.patch_job("job", suspend=True)
    eventually(lambda: cluster.condition("job", "Suspended")["status"] == "True", 60, "its suspension is complete")
    assert "deletionTimestamp" in cluster.pods()[lost]["metadata"]
    assert names(cluster, "job", "Suspended")
