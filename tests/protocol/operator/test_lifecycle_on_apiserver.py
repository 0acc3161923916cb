"""Lifecycles of jobs on a real API server and a real etcd: other managers, reused names, deletion, a new template."""

from __future__ import annotations

import pytest

from elastrain.api import names
from elastrain.api.records import Outcome, Termination

pytestmark = pytest.mark.apiserver


@pytest.fixture(autouse=True)
def _operator(operator_process):
    operator_process()


def template(image: str) -> dict:
    container = {"name": "trainer", "image": image, "command": ["python", "train.py"]}
    return {"spec": {"containers": [container]}}


def collect_garbage(cluster, name: str) -> None:
    """The garbage collector of a complete cluster."""
    for pod, body in cluster.pods().items():
        if body["metadata"]["labels"][names.LABEL_JOB] == name:
            cluster.call("DELETE", f"{cluster.pods_path}/{pod}", {"gracePeriodSeconds": 0})


# ---- who manages it --------------------------------------------------------------------------------------------------
def test_a_job_of_another_manager_is_ignored(cluster, play, eventually):
    cluster.create_job("theirs", maxReplicas=1, managedBy="kueue.x-k8s.io/multikueue")
    play(cluster.create_job("ours", maxReplicas=1, managedBy="elastrain.dev/operator"))
    eventually(lambda: cluster.status("ours").get("readyReplicas") == 1, 60, "ours trains")
    assert cluster.status("theirs") == {}
    assert set(cluster.pods()) == {"ours-0"}


def test_a_queued_job_creates_no_pod_until_it_is_released(cluster, play, eventually):
    keys = cluster.create_job("queued", maxReplicas=1, suspend=True, template=template("trainer:1"))
    eventually(lambda: cluster.condition("queued", "Suspended").get("status") == "True", 60, "it is suspended")
    assert not cluster.pods()
    chosen = template("trainer:1")
    chosen["spec"]["nodeSelector"] = {"pool": "a100"}
    cluster.patch_job("queued", template=chosen, suspend=False)
    play(keys)
    eventually(lambda: cluster.status("queued").get("readyReplicas") == 1, 30, "it trains")
    assert cluster.pods()["queued-0"]["spec"]["nodeSelector"] == {"pool": "a100"}


# ---- a name that is used again ---------------------------------------------------------------------------------------
def test_job_of_a_deleted_job_s_name_adopts_none_of_its_pods_and_none_of_its_records(cluster, play, client, eventually):
    first = cluster.create_job("again", maxReplicas=1)
    player = play(first)
    eventually(lambda: cluster.status("again").get("readyReplicas") == 1, 60, "the first one trains")
    player.close()
    cluster.call("DELETE", cluster.job_path("again"))  # its pods stay: no garbage collector runs here
    old = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    second = cluster.create_job("again", maxReplicas=1)
    play(second)

    eventually(lambda: cluster.status("again").get("readyReplicas") == 1, 60, "the second one trains")
    pods = cluster.pods()
    own = {n for n, p in pods.items() if p["metadata"]["labels"][names.LABEL_JOB_UID] == second.uid}
    assert own.isdisjoint(old)
    assert {n: pods[n]["metadata"]["uid"] for n in old} == old, "pods of the old job are not touched"
    assert cluster.status("again")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}
    assert cluster.status("again")["generation"]["number"] >= 1
    collect_garbage(cluster, "again")
    eventually(lambda: not client.get_prefix(first.prefix)[0], 60, "the first one's records are swept")
    assert client.get_prefix(second.prefix)[0], "the second one's are not"


# ---- labels that others write ----------------------------------------------------------------------------------------
def test_restarted_operator_finds_its_pods_whatever_labels_policies_have_rewritten(
    cluster, play, operator_process, eventually
):
    play(cluster.create_job("kept", maxReplicas=2))
    eventually(lambda: cluster.status("kept").get("readyReplicas") == 2, 60, "two workers train")
    operator_process().kill()
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    theirs = {"app.kubernetes.io/managed-by": "platform", "app.kubernetes.io/name": "any", "team": "a"}
    for pod in before:
        cluster.merge(f"{cluster.pods_path}/{pod}", {"metadata": {"labels": theirs}})
    cluster.patch_job("kept", maxReplicas=3)

    operator_process()

    eventually(lambda: cluster.status("kept").get("readyReplicas") == 3, 60, "it has grown by one worker")
    pods = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    assert set(pods) == {"kept-0", "kept-1", "kept-2"}
    assert before.items() <= pods.items()
    assert cluster.status("kept")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}


# ---- deletion in any state -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["pending", "suspended", "failed", "managed"])
def test_a_deleted_job_is_gone_at_once_and_its_records_follow(cluster, client, eventually, state):
    spec = {"suspended": {"suspend": True}, "managed": {"managedBy": "example.com/else"}}.get(state, {})
    keys = cluster.create_job(state, maxReplicas=1, backoffLimit=0, **spec)
    if state in ("pending", "failed"):
        eventually(lambda: f"{state}-0" in cluster.pods(), 60, "a pod")
    if state == "failed":
        words = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom")
        cluster.end_trainer("failed-0", words)
        eventually(lambda: cluster.condition(state, "Failed").get("status") == "True", 30, "it has failed")
    if state == "suspended":
        eventually(lambda: cluster.condition(state, "Suspended").get("status") == "True", 60, "it is suspended")

    cluster.call("DELETE", cluster.job_path(state))

    assert not cluster.exists(state), "nothing blocks its deletion"
    collect_garbage(cluster, state)
    eventually(lambda: not client.get_prefix(keys.prefix)[0], 30, "its records are gone")
    assert not cluster.pods(), "no further pods are created for it"


# ---- a changed template ----------------------------------------------------------------------------------------------
def images(cluster) -> list[str]:
    return sorted(p["spec"]["containers"][0]["image"] for p in cluster.pods().values())


def test_a_template_is_rolled_out_while_enough_workers_train_and_a_bad_one_stops(
    cluster, play, operator_process, eventually
):
    keys = cluster.create_job("roll", minReplicas=2, maxReplicas=3, template=template("trainer:1"))
    player = play(keys)
    eventually(lambda: cluster.status("roll").get("readyReplicas") == 3, 60, "three workers train")

    fewest = []
    cluster.patch_job("roll", template=template("trainer:2"))

    def rolled_out() -> bool:
        fewest.append(len(player.in_generation))
        return cluster.condition("roll", "UpToDate").get("status") == "True"

    eventually(rolled_out, 60, "it is rolled out")
    assert min(fewest) >= 2
    eventually(lambda: images(cluster) == ["trainer:2"] * 3, 30, "all are of the new template")
    assert cluster.status("roll")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}

    operator_process().kill()
    operator_process()
    before = set(cluster.pods())
    number = int(cluster.status("roll")["nextOrdinal"])
    player.held.add(f"roll-{number}")
    cluster.patch_job("roll", template=template("trainer:3"))
    eventually(lambda: f"roll-{number}" in cluster.pods(), 60, "the first new worker")
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    cluster.set_trainer(f"roll-{number}", "Pending", waiting)
    eventually(lambda: cluster.condition("roll", "UpToDate").get("reason") == "RolloutStopped", 30, "it stops")
    assert "image trainer:1" in cluster.condition("roll", "UpToDate")["message"], "as the simulated kubelet reports it"
    assert before < set(cluster.pods())
    assert len(player.in_generation) == 3


# ---- a bad node ------------------------------------------------------------------------------------------------------
def test_a_replacement_avoids_the_node_that_failed_its_check(cluster, eventually):
    cluster.create_job("checked", maxReplicas=1, preflight={"minBandwidth": 1000})
    eventually(lambda: "checked-0" in cluster.pods(), 60, "a pod")
    (check,) = cluster.pods()["checked-0"]["spec"]["initContainers"]
    assert check["command"][:2] == ["elastrain", "preflight"]

    binding = {"metadata": {"name": "checked-0"}, "target": {"kind": "Node", "name": "bad"}}
    cluster.call("POST", f"{cluster.pods_path}/checked-0/binding", binding)
    words = "bandwidth cuda:0: 310.0 GB/s, at least 1000 wanted"
    ended = {
        "exitCode": 12,
        "finishedAt": "2030-01-01T00:00:00Z",
        "startedAt": "2030-01-01T00:00:00Z",
        "message": words,
    }
    state = {
        "name": names.PREFLIGHT_CONTAINER, "image": "i", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": ended},
    }  # fmt: skip
    status = {"phase": "Failed", "initContainerStatuses": [state]}
    cluster.merge(f"{cluster.pods_path}/checked-0/status", {"status": status})

    eventually(lambda: "checked-1" in cluster.pods(), 30, "a replacement")
    affinity = cluster.pods()["checked-1"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["bad"]}]}
    condition = cluster.condition("checked", "NodesExcluded")
    assert (condition["status"], condition["reason"]) == ("True", "Excluded")
    assert words in condition["message"]
    assert cluster.status("checked")["restarts"] == {"user": 0, "infrastructure": 1, "preemption": 0}


# ---- workers that do not start ---------------------------------------------------------------------------------------
