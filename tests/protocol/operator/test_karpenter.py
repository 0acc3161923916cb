"""Jobs beside a real autoscaler: Karpenter with its kwok provider, Kubernetes' scheduler and controllers, nodes kept
by kwok."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from control_plane import ApiServer
from elastrain_cli.etcd_server import EtcdServer
from karpenter_plane import NodePool, Plane, karpenter_plane
from operator_process import OperatorProcess, operator_account
from played import Played
from raw_cluster import Cluster
from warm import Warm

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(900)]

COMES = 120.0
"""Seconds for a node to come or go: batches of pods, kwok's stages, and consolidation, on a busy machine."""
SPOT = "aws-node-termination-handler/spot-itn"
NOTICE = 120.0
"""Seconds between the notice and the end of a spot machine, of the cloud with this taint."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with karpenter_plane(tmp_path_factory.mktemp("karpenter")) as found:
        yield found


@pytest.fixture(scope="module")
def _operator(plane: Plane, light: Warm, etcd: EtcdServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("operator")
    access = operator_account(plane.server, home / "kubeconfig")
    flags = (f"--etcd-endpoints={etcd.endpoint}", "--capacity", "--capacity-hysteresis=0", "--capacity-pending=1")
    operator = OperatorProcess(light, access, home / "operator.log", *flags)
    yield
    operator.stop()


@pytest.fixture
def apiserver(plane: Plane) -> ApiServer:
    """The control plane of ``cluster``: the one with Karpenter."""
    return plane.server


@pytest.fixture
def pool(cluster: Cluster, _operator: None) -> Iterator[NodePool]:
    found = NodePool(cluster)
    yield found
    for job in cluster.call("GET", cluster.job_path())["items"]:
        cluster.call("DELETE", cluster.job_path(job["metadata"]["name"]))
    for pod in cluster.pods():
        cluster.call("DELETE", f"{cluster.pods_path}/{pod}", {"gracePeriodSeconds": 0})
    found.close()


@pytest.fixture
def trains(
    cluster: Cluster, pool: NodePool, scheduled: Callable[..., Played], eventually: Callable[..., None]
) -> Callable[..., Played]:
    """``trains(name, workers, **spec)``: a job whose containers run where the scheduler binds them, once so many
    train."""

    def start(name: str, workers: int, **spec: Any) -> Played:
        player = scheduled(name, pool.template(), **spec)
        eventually(lambda: len(player.in_generation) == workers, COMES, f"{workers} workers of {name} train")
        eventually(lambda: cluster.status(name).get("readyReplicas") == workers, 30, "and the operator knows")
        player.commit(10)
        return player

    return start


def uids(cluster: Cluster) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}


def end(cluster: Cluster, job: str) -> None:
    """A user deletes a job; its pods go with it."""
    cluster.call("DELETE", cluster.job_path(job))
    for pod in cluster.pods():
        if pod.startswith(f"{job}-"):
            cluster.call("DELETE", f"{cluster.pods_path}/{pod}", {"gracePeriodSeconds": 0})


def keeps_its_state(player: Played) -> bool:
    """Whether some worker of each generation is in the next one: no eviction took all holders of the state."""
    return all(before & after for before, after in itertools.pairwise(player.formed))


def test_job_grows_into_nodes_that_come_for_it_and_gives_one_back_when_it_shrinks(cluster, pool, trains, eventually):
    pool.add("all", nodes=2)
    player = trains("job", 4, minReplicas=1, maxReplicas=4)
    assert len(pool.nodes()) == 2, "from no node to two"
    first, second = (pool.workers(n) for n in pool.nodes())

    cluster.patch_job("job", replicas=2)
    eventually(lambda: len(player.in_generation) == 2, 60, "it shrinks")
    assert set(player.in_generation) in (first, second), "its workers leave one node"
    # Either the empty node goes, or Karpenter has looked earlier: then it moves the two workers onto the empty one.
    eventually(lambda: len(pool.nodes()) == 1, COMES, "Karpenter ends a node")
    eventually(lambda: len(player.in_generation) == 2, COMES, "two workers train")
    assert keeps_its_state(player)


def test_job_shrinks_when_a_node_expires_and_grows_into_the_next_one(cluster, pool, trains, eventually):
    pool.add("steady", nodes=1, weight=2)
    pool.add("brief", nodes=1, expire="90s")
    player = trains("job", 4, minReplicas=1, maxReplicas=4)
    (old,), (steady,) = pool.nodes("brief"), pool.nodes("steady")
    stayed = {name: uid for name, uid in uids(cluster).items() if name in pool.workers(steady)}

    eventually(lambda: len(player.in_generation) == 2, 90 + COMES, "the node's workers leave")
    eventually(lambda: old not in pool.nodes("brief"), COMES, "the expired node goes")
    eventually(lambda: len(player.in_generation) == 4, COMES, "another node comes for the job")
    assert stayed.items() <= uids(cluster).items(), "workers of the other node were not touched"
    assert keeps_its_state(player)
    assert cluster.status("job")["restarts"]["user"] == 0


def test_workers_leave_a_spot_node_by_its_notice_if_another_node_has_room(cluster, pool, trains, eventually):
    pool.add("all", nodes=2, consolidate="Never")
    trains("other", 2, minReplicas=2, maxReplicas=2)
    player = trains("job", 2, minReplicas=1, maxReplicas=2)
    first = next(n for n in pool.nodes() if pool.workers(n) >= set(player.in_generation))
    threatened = pool.workers(first)
    end(cluster, "other")

    pool.taint(first, SPOT)
    eventually(lambda: not threatened & set(player.in_generation), NOTICE, "its workers leave by themselves")
    eventually(lambda: len(player.in_generation) == 2, NOTICE, "their successors train on the other node")
    pool.reclaim(first)
    eventually(lambda: first not in pool.nodes(), COMES, "the machine is gone")
    assert (player.evicted, keeps_its_state(player)) == ([], True)


def test_workers_train_until_karpenter_drains_their_node_if_no_other_has_room(cluster, pool, trains, eventually):
    pool.add("all", nodes=2)
    player = trains("job", 4, minReplicas=1, maxReplicas=4)
    first, second = sorted(pool.nodes())
    threatened, safe = pool.workers(first), pool.workers(second)

    pool.taint(first, SPOT)
    pool.reclaim(first)  # as Karpenter does on a cloud's notice
    eventually(lambda: not threatened & set(player.in_generation), NOTICE, "its workers leave in time")
    eventually(lambda: first not in pool.nodes(), COMES, "the machine is gone")
    eventually(lambda: len(player.in_generation) == 4, COMES, "a node comes for their successors")
    assert safe <= set(player.in_generation), "the others trained on"
    assert (threatened >= set(player.evicted), keeps_its_state(player)) == (True, True)


def test_node_of_an_only_worker_is_not_consolidated(plane, cluster, pool, trains, eventually):
    pool.add("all", nodes=2)
    full = trains("full", 2, minReplicas=2, maxReplicas=2)
    alone = trains("alone", 1, replicas=1, maxReplicas=1)
    before = uids(cluster)
    cluster.patch_job("full", minReplicas=1, replicas=1)
    eventually(lambda: len(full.in_generation) == 1, 60, "both nodes are half empty")
    full.commit(20)

    def marks() -> list[str]:
        return [p["metadata"]["annotations"].get("karpenter.sh/do-not-disrupt", "") for p in cluster.pods().values()]

    eventually(lambda: marks() == ["true", "true"], 30, "each is the only one with its state")
    seen = plane.evaluations()
    eventually(lambda: plane.evaluations() >= seen + 3, COMES, "Karpenter has looked for nodes to consolidate")
    assert (full.evicted, alone.evicted, len(pool.nodes()), len(uids(cluster))) == ([], [], 2, 2)
    assert uids(cluster).items() <= before.items()


def test_half_empty_nodes_of_one_job_are_consolidated_worker_by_worker(cluster, pool, trains, eventually):
    pool.add("all", nodes=2)
    player = trains("job", 1, replicas=1, maxReplicas=2)
    trains("other", 1, replicas=1, maxReplicas=1)
    cluster.patch_job("job", replicas=2)
    eventually(lambda: len(player.in_generation) == 2, COMES, "its second worker has a second node")
    player.commit(20)

    end(cluster, "other")
    eventually(lambda: len(pool.nodes()) == 1, COMES, "two half-empty nodes become one")
    eventually(lambda: len(player.in_generation) == 2, COMES, "both train on it")
    assert keeps_its_state(player)
