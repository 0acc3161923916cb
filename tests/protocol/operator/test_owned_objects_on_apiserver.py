"""The deletion of a job, or of its namespace, ends by Kubernetes' own controllers, whatever state the job is in."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable, Iterator

import pytest

from control_plane import ApiServer
from elastrain.api.keys import JobKeys
from elastrain.api.records import Outcome, Termination
from kube_scheduling import controllers
from played import Played
from raw_cluster import Cluster

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly]

FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="no data")
OWNED = ("/api/v1/namespaces/{}/pods", "/apis/policy/v1/namespaces/{}/poddisruptionbudgets")


@pytest.fixture(scope="module")
def _collectors(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The garbage collector and the controllers of namespaces and disruption budgets."""
    names = ("garbage-collector-controller", "namespace-controller", "disruption-controller")
    with controllers(apiserver, tmp_path_factory.mktemp("collectors"), *names):
        yield


@pytest.fixture(autouse=True)
def _operator(operator_process, _collectors):
    operator_process()


def elastic(cluster: Cluster, play: Callable[..., Played], eventually: Callable[..., None]) -> None:
    player = play(cluster.create_job("elastic", maxReplicas=2))
    eventually(lambda: cluster.status("elastic").get("readyReplicas") == 2, 60, "two workers train")
    player.commit(10)
    eventually(lambda: owned(cluster)[1] > 0, 30, "its budget is written")


def suspended(cluster: Cluster, play: Callable[..., Played], eventually: Callable[..., None]) -> None:
    cluster.create_job("suspended", maxReplicas=2, suspend=True)
    eventually(lambda: cluster.status("suspended").get("phase") == "Suspended", 30, "it is seen")


def drained(cluster: Cluster, play: Callable[..., Played], eventually: Callable[..., None]) -> None:
    player = play(cluster.create_job("drained", maxReplicas=2, protectState=False))
    eventually(lambda: cluster.status("drained").get("readyReplicas") == 2, 60, "two workers train")
    with player.paused():
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "drained-0"}}
        cluster.call("POST", f"{cluster.pods_path}/drained-0/eviction", eviction)
        eventually(lambda: "drained-2" in cluster.pods(), 30, "its replacement is created, and joins nothing")


def failing(cluster: Cluster, play: Callable[..., Played], eventually: Callable[..., None]) -> None:
    player = play(cluster.create_job("failing", maxReplicas=1, backoffLimit=0))
    eventually(lambda: cluster.status("failing").get("readyReplicas") == 1, 60, "it trains")
    player.crash("failing-0", FAILED)
    eventually(lambda: cluster.status("failing").get("phase") == "Failed", 30, "it has failed")


STATES = {"elastic": elastic, "suspended": suspended, "drained": drained, "failing": failing}


def owned(cluster: Cluster) -> list[int]:
    """How many objects of each kind there are."""
    return [len(cluster.call("GET", path.format(cluster.namespace))["items"]) for path in OWNED]


def exists(cluster: Cluster, path: str) -> bool:
    try:
        cluster.call("GET", path)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise
    return True


@pytest.mark.parametrize("state", STATES)
def test_a_deleted_job_leaves_nothing_and_waits_for_nothing(cluster, play, eventually, state):
    STATES[state](cluster, play, eventually)
    cluster.call("DELETE", cluster.job_path(state), {"propagationPolicy": "Foreground"})
    eventually(lambda: not exists(cluster, cluster.job_path(state)), 30, "it is deleted")
    eventually(lambda: owned(cluster) == [0, 0], 10, "so is what it owned")


def test_a_deleted_set_of_workers_costs_no_worker(cluster, play, eventually):
    elastic(cluster, play, eventually)
    path = f"/apis/elastrain.dev/v1alpha1/namespaces/{cluster.namespace}/workersets"
    for found in cluster.call("GET", path)["items"]:
        cluster.call("DELETE", f"{path}/{found['metadata']['name']}")

    def owners() -> set[tuple[str, ...]]:
        return {tuple(o["kind"] for o in p["metadata"]["ownerReferences"]) for p in cluster.pods().values()}

    eventually(lambda: owners() == {("ElasticTrainingJob",)}, 30, "the garbage collector removes its reference")
    cluster.patch_job("elastic", maxReplicas=1)
    eventually(lambda: len(cluster.pods()) == 1, 60, "the job has kept its workers, and lets one go")
    assert cluster.pods().keys() < {"elastic-0", "elastic-1"}
    assert cluster.call("GET", path)["items"], "the set is there again"


def test_the_deletion_of_a_namespace_ends_with_jobs_in_every_state(cluster, play, eventually):
    for begin in STATES.values():
        begin(cluster, play, eventually)
    path = f"/api/v1/namespaces/{cluster.namespace}"
    cluster.call("DELETE", path)
    eventually(lambda: not exists(cluster, path), 60, "the namespace is deleted")


def kubectl(apiserver: ApiServer, cluster: Cluster, *args: str) -> None:
    done = apiserver.kubectl(f"--namespace={cluster.namespace}", *args)
    assert done.returncode == 0, done.stderr


def test_a_new_job_adopts_nothing_of_one_that_was_orphaned_and_its_orphans_go_by_one_command(
    apiserver, cluster, play, client, operator_process, eventually
):
    elastic(cluster, play, eventually)
    old = JobKeys(cluster.namespace, "elastic", cluster.job("elastic")["metadata"]["uid"])
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    operator_process.stop()
    kubectl(apiserver, cluster, "delete", "etj", "elastic", "--cascade=orphan")
    assert not cluster.exists("elastic")
    operator_process()
    player = play(cluster.create_job("elastic", maxReplicas=2, protectState=False))
    eventually(lambda: cluster.status("elastic").get("readyReplicas") == 2, 60, "the new job trains")

    new = set(player.in_generation)
    assert new.isdisjoint(before), "the orphans keep their names"
    assert {n: cluster.pods()[n]["metadata"]["uid"] for n in before} == before, "no orphan was deleted"
    assert cluster.status("elastic")["restarts"] == dict.fromkeys(("user", "infrastructure", "preemption"), 0)
    ours = {p["metadata"]["name"] for p in cluster.pods().values() if controlled_by(p, player.keys.uid)}
    assert ours == new

    # docs/lifecycle.md
    kubectl(
        apiserver, cluster, "delete", "pods,workersets,pdb,secrets", "-l", f"elastrain.dev/job-uid={old.uid}", "--now"
    )
    eventually(lambda: set(cluster.pods()) == new, 30, "the orphans are gone")
    eventually(lambda: not client.get_prefix(old.prefix)[0], 90, "so are the old job's records")
    assert owned(cluster) == [2, 0]


def controlled_by(pod: dict, uid: str) -> bool:
    return any(o["uid"] == uid for o in pod["metadata"].get("ownerReferences", ()))
