"""The operator as a process against a real API server and a real etcd; the test simulates kubelet and agents."""

from __future__ import annotations

import copy
import time

import pytest

from elastrain.api.records import Member, Outcome, Phase, Target, Termination
from raw_cluster import TEMPLATE

FAILED = Termination(
    outcome=Outcome.FAILED, exit_code=1, rank=0, reason="ScriptFailed", message="ValueError: no data", log_tail="line 7"
)

pytestmark = pytest.mark.apiserver


@pytest.fixture(autouse=True)
def _operator(operator_process, request):
    if "operator_factory" not in request.fixturenames:
        operator_process()


def test_job_runs_scales_survives_a_loss_and_succeeds(cluster, play, client, eventually):
    keys = cluster.create_job("whole", minReplicas=1, maxReplicas=4, replicas=2)
    player = play(keys)

    eventually(lambda: cluster.condition("whole", "PodsReady").get("status") == "True", 60, "two workers train")
    assert set(cluster.pods()) == {"whole-0", "whole-1"}

    cluster.patch_job("whole", replicas=4)
    eventually(lambda: cluster.status("whole").get("readyReplicas") == 4, 30, "four workers train")

    player.crash("whole-1", Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom"))
    eventually(lambda: cluster.status("whole")["restarts"]["user"] == 1, 30, "the failure is counted")
    eventually(lambda: "whole-4" in cluster.pods(), 30, "the lost worker is replaced")
    eventually(lambda: cluster.status("whole").get("readyReplicas") == 4, 30, "four workers train again")

    uids = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}
    cluster.patch_job("whole", replicas=2)
    eventually(lambda: set(cluster.pods()) == {"whole-0", "whole-1", "whole-2"}, 30, "the newest two are drained")
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}.items() <= uids.items()
    eventually(lambda: Target.decode(client.get(keys.target).value).leaving == (), 30, "nobody is leaving any more")

    player.finish(step=100)
    eventually(lambda: cluster.status("whole").get("phase") == "Succeeded", 30, "the job has succeeded")
    eventually(lambda: "Succeeded" in dict(cluster.events("whole")), 30, "its event, which is sent in the background")
    reasons = [reason for reason, _ in cluster.events("whole")]
    for once in ("TargetSet", "WorkerLost", "Succeeded"):
        assert reasons.count(once) == 1, cluster.events("whole")
    metadata = cluster.job("whole")["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata


def test_the_lease_of_a_killed_worker_ends_at_once_and_no_other(cluster, play, client, eventually):
    keys = cluster.create_job("killed", minReplicas=1, maxReplicas=2)
    player = play(keys)
    eventually(lambda: cluster.status("killed").get("readyReplicas") == 2, 60, "two workers train")

    with player.paused():
        uid = cluster.pods()["killed-1"]["metadata"]["uid"]
        for number, pod in enumerate((uid, "a-later-one")):
            member = Member(id=f"killed-1.{number}", worker="killed-1", pod=pod, address="127.0.0.1", phase=Phase.READY)
            client.put(keys.member(member.id), member.encode(), lease=client.lease_grant(600))
        began = time.monotonic()
        cluster.end_trainer("killed-1", Termination(outcome=Outcome.FAILED, exit_code=137))
        eventually(lambda: client.get(keys.member("killed-1.0")) is None, 30, "its lease of ten minutes has ended")
        print(f"the lease ended {time.monotonic() - began:.3f} s after the report of the container's end")
        assert client.get(keys.member("killed-1.1")) is not None


def test_health_endpoint_shows_jobs_and_etcd(cluster, play, operator_process, eventually):
    play(cluster.create_job("known", maxReplicas=1))
    eventually(lambda: cluster.status("known").get("readyReplicas") == 1, 60, "a worker trains")
    state = operator_process().health()["state"]
    assert state["jobs"] >= 1
    assert state["etcd"] == "connected"


def test_a_refused_template_is_named_and_a_corrected_one_is_used(cluster, play, eventually):
    container = {"name": "trainer", "image": "trainer:1", "command": ["train"], "imagePullPolcy": "Always"}
    play(cluster.create_job("typo", maxReplicas=2, template={"spec": {"containers": [container]}}))

    eventually(lambda: cluster.condition("typo", "PodsReady").get("reason") == "TemplateInvalid", 60, "it is refused")
    assert "imagePullPolcy" in cluster.condition("typo", "PodsReady")["message"]
    eventually(lambda: [r for r, _ in cluster.events("typo")].count("TemplateInvalid") == 1, 30, "an event tells")

    del container["imagePullPolcy"]
    cluster.patch_job("typo", template={"spec": {"containers": [container]}})
    eventually(lambda: cluster.status("typo").get("readyReplicas") == 2, 30, "the fixed job trains")
    assert set(cluster.pods()) == {"typo-0", "typo-1"}


def test_job_with_an_account_a_secret_and_a_claim_trains_under_the_charts_policies(cluster, play, eventually):
    account = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"
    cluster.call("POST", account, {"metadata": {"name": "trainer"}})
    body = copy.deepcopy(TEMPLATE["spec"])
    body |= {"serviceAccountName": "trainer"}
    body["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    body["containers"][0]["envFrom"] = [{"secretRef": {"name": "keys"}}]
    play(cluster.create_job("whole", maxReplicas=2, template={"spec": body}))
    eventually(lambda: cluster.status("whole").get("readyReplicas") == 2, 60, "two workers train")


def test_next_operator_takes_over_if_one_is_killed_during_a_rescale(cluster, play, operator_process, eventually):
    player = play(cluster.create_job("taken", maxReplicas=4, replicas=4))
    eventually(lambda: cluster.status("taken").get("readyReplicas") == 4, 60, "four workers train")
    survivors = {n: cluster.pods()[n]["metadata"]["uid"] for n in ("taken-0", "taken-1")}
    with player.paused():
        cluster.patch_job("taken", replicas=2)
        eventually(lambda: player.target().desired == 2, 30, "the target is written")
        operator_process().kill()
    eventually(lambda: len(player.in_generation) == 2, 30, "the workers shrink without an operator")

    operator_process()

    eventually(lambda: set(cluster.pods()) == set(survivors), 60, "the drained pods are deleted")
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()} == survivors
    assert cluster.status("taken")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}


def test_finished_job_is_deleted_after_its_ttl(cluster, play, eventually):
    player = play(cluster.create_job("short", maxReplicas=1, ttlSecondsAfterFinished=2))
    eventually(lambda: cluster.status("short").get("readyReplicas") == 1, 60, "a worker trains")
    player.finish(step=1)
    eventually(lambda: not cluster.exists("short"), 30, "the job is deleted")


def test_silent_worker_is_replaced_if_its_node_is_not_ready_and_its_lease_has_expired(
    cluster, play, client, eventually
):
    keys = cluster.create_job("node", maxReplicas=2)
    player = play(keys)
    eventually(lambda: cluster.status("node").get("readyReplicas") == 2, 60, "two workers train")

    player.lose_node("node-1")

    eventually(lambda: "node-2" in cluster.pods(), 30, "a replacement is made")
    eventually(lambda: cluster.status("node").get("readyReplicas") == 2, 30, "two workers train again")
    assert cluster.status("node")["restarts"]["infrastructure"] == 1
    assert ("WorkerLost" in dict(cluster.events("node"))) and ("NodeLost" in dict(cluster.events("node"))["WorkerLost"])


def test_a_healthy_job_is_unchanged_during_an_outage_of_etcd(cluster, etcd_factory, operator_factory, eventually):
    etcd = etcd_factory()
    operator_factory(etcd, cluster.namespace)
    cluster.create_job("out", maxReplicas=2)
    available = lambda: cluster.condition("out", "CoordinationAvailable").get("status")  # noqa: E731
    eventually(lambda: len(cluster.pods()) == 2, 60, "two pods")
    before = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    etcd.stop()
    eventually(lambda: available() == "False", 30, "the outage is told")
    cluster.patch_job("out", replicas=1)
    cluster.end_trainer("out-1", FAILED)
    eventually(lambda: cluster.status("out")["restarts"]["user"] == 1, 30, "what is certain is counted")
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()} == before
    assert "127.0.0.1" in cluster.condition("out", "CoordinationAvailable")["message"]

    etcd.start()
    eventually(lambda: available() == "True", 60, "etcd is back")
