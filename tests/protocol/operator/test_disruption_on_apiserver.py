"""Evictions by the API server's own rules: drains, one or several at once, leave a worker that holds the state."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable

import pytest

from played import Played
from raw_cluster import Cluster

pytestmark = pytest.mark.apiserver

CHECKPOINT = {"path": "/c", "everySteps": 100}
DURABLE = {
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "trainer:1",
                "command": ["python", "train.py"],
                "volumeMounts": [{"name": "c", "mountPath": "/c"}],
            }
        ],
        "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}],
    }
}


@pytest.fixture(autouse=True)
def _operator(operator_process, disruptions):
    operator_process()


def evict(cluster: Cluster, pod: str) -> bool:
    """Whether the API server accepts the eviction, as of ``kubectl drain``; the pod then terminates."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": cluster.namespace}}
    try:
        cluster.call("POST", f"{cluster.pods_path}/{pod}/eviction", body)
    except urllib.error.HTTPError as refused:
        assert refused.code == 429, refused.read()
        assert "disruption budget" in json.loads(refused.read())["message"]
        return False
    return True


def budgets(cluster: Cluster) -> list[dict]:
    path = f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"
    return list(cluster.call("GET", path)["items"])


def allows(cluster: Cluster) -> int | None:
    """Evictions that the one budget allows now, once its controller has seen its newest spec; None: there is none."""
    found = budgets(cluster)
    if len(found) != 1 or found[0].get("status", {}).get("observedGeneration") != found[0]["metadata"]["generation"]:
        return None
    return int(found[0]["status"]["disruptionsAllowed"])


@pytest.fixture
def trains(cluster: Cluster, play: Callable[..., Played], eventually: Callable[..., None]) -> Callable[..., Played]:
    """``trains(name, workers, **spec)``: a job whose workers train."""

    def start(name: str, workers: int, **spec: object) -> Played:
        player = play(cluster.create_job(name, maxReplicas=workers, **spec))
        eventually(lambda: cluster.status(name).get("readyReplicas") == workers, 60, f"{workers} workers train")
        return player

    return start


def test_eviction_moves_on_once_another_worker_holds_the_state(cluster, trains, eventually):
    player = trains("job", 2)
    player.commit(10)
    eventually(lambda: allows(cluster) == 1, 30, "one of two may be evicted")
    with player.paused():
        assert evict(cluster, "job-0")
        assert not evict(cluster, "job-1"), "the last holder"
        player.client.delete(player.keys.member("job-0"))  # its pod is on no node, so it is gone at once
    eventually(lambda: "job-2" in player.in_generation, 30, "the replacement joins")
    assert not evict(cluster, "job-1"), "the joiner holds nothing before its first step"
    player.commit(20)
    eventually(lambda: allows(cluster) == 1, 30, "the joiner holds the state")
    assert evict(cluster, "job-1")


def test_the_only_worker_may_go_once_a_checkpoint_is_written(cluster, trains, eventually):
    player = trains("job", 1, checkpoint=CHECKPOINT, template=DURABLE)
    player.commit(10)
    eventually(lambda: allows(cluster) == 0, 30, "nothing is saved yet")
    assert not evict(cluster, "job-0")
    player.commit(110, saved=100)
    eventually(lambda: not budgets(cluster), 30, "a drain saves the state")
    assert evict(cluster, "job-0")


def test_budget_ends_with_the_training(cluster, trains, eventually):
    player = trains("job", 2)
    player.commit(10)
    eventually(lambda: allows(cluster) == 1, 30, "it is protected")
    player.finish(20)
    eventually(lambda: cluster.status("job").get("phase") == "Succeeded", 30, "it ends")
    eventually(lambda: not budgets(cluster), 10, "an ended job needs no budget")


# ---- budgets of users ------------------------------------------------------------------------------------------------
RULES = {"number": {"minAvailable": 1}, "unavailable": {"maxUnavailable": 1}, "percent": {"minAvailable": "50%"}}


def guard(cluster: Cluster, job: str = "job", **rule: object) -> None:
    """A user's own budget over the job's workers."""
    chosen = {"matchLabels": {"elastrain.dev/job": job}}
    path = f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"
    cluster.call("POST", path, {"metadata": {"name": "own"}, "spec": {"selector": chosen, **rule}})


def expects(cluster: Cluster) -> int | None:
    """Pods that Kubernetes' controller believes the budget's pods are to be."""
    return budgets(cluster)[0].get("status", {}).get("expectedPods")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("spec", [{}, {"replicas": 2}], ids=["elastic", "fixed"])
def test_a_user_s_own_budget_lets_a_drain_take_one_worker(cluster, trains, eventually, spec, rule):
    player = trains("job", 2, protectState=False, **spec)
    guard(cluster, **rule)
    eventually(lambda: allows(cluster) == 1, 30, "one of two may be evicted")
    with player.paused():
        assert [evict(cluster, pod) for pod in ("job-0", "job-1")] == [True, False]


def test_a_user_s_own_budget_replaces_the_operator_s_and_a_condition_says_so(cluster, trains, eventually):
    player = trains("job", 2)
    guard(cluster, maxUnavailable=1)
    player.commit(10)
    eventually(lambda: cluster.condition("job", "StateProtected").get("reason") == "WriteRefused", 30, "it says so")
    assert "PodDisruptionBudget own selects its workers" in cluster.condition("job", "StateProtected")["message"]
    eventually(lambda: allows(cluster) == 1, 30, "there is one budget alone")
    with player.paused():
        assert [evict(cluster, pod) for pod in ("job-0", "job-1")] == [True, False]


def test_a_user_s_own_budget_lets_the_next_worker_go_once_the_last_is_replaced(cluster, trains, eventually):
    player = trains("job", 3, protectState=False)
    guard(cluster, maxUnavailable=1)
    eventually(lambda: allows(cluster) == 1, 30, "one of three may be evicted")
    with player.paused():
        assert [evict(cluster, pod) for pod in ("job-0", "job-1")] == [True, False]
        player.client.delete(player.keys.member("job-0"))  # its pod is on no node, so it is gone at once
    eventually(lambda: "job-3" in player.in_generation, 30, "the replacement joins")
    eventually(lambda: allows(cluster) == 1, 30, "the next one may be evicted")
    assert evict(cluster, "job-1")


def test_a_user_s_own_budget_counts_the_workers_of_groups(cluster, play, eventually):
    trainer = {"name": "trainer", "image": "t:1", "command": ["python", "t.py"]}
    spec = {
        "parallelism": {"shards": 2},
        "nprocPerNode": 1,
        "maxReplicas": 2,
        "template": {"spec": {"containers": [trainer]}},
    }
    player = play(cluster.create_job("job", protectState=False, **spec))
    player.group_size = 2
    eventually(lambda: len(player.in_generation) == 4, 60, "two groups train")
    guard(cluster, maxUnavailable=1)
    eventually(lambda: allows(cluster) == 1, 30, "one of four workers may be evicted")
    assert expects(cluster) == 4


def test_a_user_s_own_budget_follows_an_elastic_job_that_shrinks_is_suspended_and_resumes(cluster, trains, eventually):
    trains("job", 3, protectState=False)
    guard(cluster, maxUnavailable=1)
    eventually(lambda: (expects(cluster), allows(cluster)) == (3, 1), 30, "of three workers, one")
    cluster.patch_job("job", maxReplicas=2)
    eventually(lambda: (expects(cluster), allows(cluster)) == (2, 1), 30, "of two workers, one")
    cluster.patch_job("job", suspend=True)
    eventually(lambda: not cluster.pods(), 30, "it is suspended")
    cluster.patch_job("job", suspend=False)
    eventually(lambda: (expects(cluster), allows(cluster)) == (2, 1), 60, "it runs again")


def test_only_the_operator_s_set_changes_with_the_size_of_a_job(cluster, trains, eventually):
    trains("job", 2, protectState=False)
    generation = cluster.job("job")["metadata"]["generation"]
    path = f"/apis/elastrain.dev/v1alpha1/namespaces/{cluster.namespace}/workersets"
    (found,) = cluster.call("GET", path)["items"]
    assert found["spec"] == {"replicas": 2}
    cluster.patch_job("job", maxReplicas=1)
    eventually(lambda: cluster.call("GET", path)["items"][0]["spec"] == {"replicas": 1}, 30, "the set follows")
    job = cluster.job("job")
    assert (job["metadata"]["generation"], "replicas" in job["spec"]) == (generation + 1, False), "the user's change"
    assert len(found["metadata"]["managedFields"]) == 1, "one writer"
