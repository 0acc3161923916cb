"""What other users of a cluster can do to a job, on a real API server: forged pods, removed labels, finalizers."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest

from elastrain.api import names
from elastrain.api.records import Outcome, Termination
from node_pool import Pool
from raw_cluster import Cluster

pytestmark = pytest.mark.apiserver
NO_RESTARTS = {"user": 0, "infrastructure": 0, "preemption": 0}


def forged(keys, name: str, ordinal: int = 0, **meta) -> dict:
    """A pod with all labels of a worker of the job."""
    labels = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_JOB: keys.job, names.LABEL_JOB_UID: keys.uid,
        names.LABEL_ORDINAL: str(ordinal),
    }  # fmt: skip
    container = {"name": "trainer", "image": "none"}
    return {"metadata": {"name": name, "labels": labels, **meta}, "spec": {"containers": [container]}}


def reference(keys) -> dict:
    return {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "name": keys.job, "uid": keys.uid, "controller": True,
    }  # fmt: skip


def trains(cluster, name: str, workers: int) -> bool:
    return cluster.status(name).get("readyReplicas") == workers


def test_pods_with_a_job_s_labels_neither_fail_nor_finish_it(cluster, apiserver, play, operator_process, eventually):
    operator_process()
    keys = cluster.create_job("victim", maxReplicas=2, backoffLimit=2)
    play(keys)
    eventually(lambda: trains(cluster, "victim", 2), 60, "it trains")
    attacker = Cluster(apiserver.kubeconfig, f"{cluster.namespace}-attacker")
    attacker.call("POST", "/api/v1/namespaces", {"metadata": {"name": attacker.namespace}})
    account = f"/api/v1/namespaces/{attacker.namespace}/serviceaccounts"
    attacker.call("POST", account, {"metadata": {"name": "default"}})
    failed = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="forged")
    finished = Termination(outcome=Outcome.FINISHED, step=99)
    for space in (attacker, cluster):
        for n, record in enumerate([failed] * 4 + [finished]):
            space.call("POST", space.pods_path, forged(keys, f"forged-{n}", n))
            space.end_trainer(f"forged-{n}", record)
    owned = forged(keys, "victim-0", ownerReferences=[reference(keys)])
    attacker.call("POST", attacker.pods_path, owned)  # a reference has no force in another namespace
    attacker.end_trainer("victim-0", failed)

    cluster.patch_job("victim", maxReplicas=3)

    eventually(lambda: trains(cluster, "victim", 3), 60, "it grows as ever")
    status = cluster.status("victim")
    assert (status["phase"], status["restarts"]) == ("Running", NO_RESTARTS)
    assert cluster.pods().keys() >= {"victim-0", "victim-1", "victim-2"}


def test_an_ordinal_that_the_job_has_not_given_out_makes_no_worker(cluster, play, operator_process, eventually):
    operator = operator_process()
    keys = cluster.create_job("victim", maxReplicas=1)
    play(keys)
    eventually(lambda: trains(cluster, "victim", 1), 60, "it trains")
    for n in (2**31 - 1, 2**31, 7):
        cluster.call("POST", cluster.pods_path, forged(keys, f"victim-{n}", n, ownerReferences=[reference(keys)]))

    cluster.patch_job("victim", maxReplicas=2)

    eventually(lambda: trains(cluster, "victim", 2), 60, "it grows")
    assert cluster.status("victim")["nextOrdinal"] == 2
    assert "victim-1" in cluster.pods()
    assert operator.is_running


def test_worker_that_loses_its_labels_stays_the_job_s(cluster, play, operator_process, eventually):
    operator_process()
    keys = cluster.create_job("stripped", maxReplicas=2)
    player = play(keys)
    eventually(lambda: trains(cluster, "stripped", 2), 60, "it trains")
    with player.paused():
        gone = dict.fromkeys(cluster.pods()["stripped-1"]["metadata"]["labels"])
        cluster.merge(f"{cluster.pods_path}/stripped-1", {"metadata": {"labels": gone}})
        cluster.patch_job("stripped", suspend=False, backoffLimit=5)
        generation = cluster.job("stripped")["metadata"]["generation"]
        eventually(lambda: cluster.status("stripped").get("observedGeneration") == generation, 30, "another pass")
        assert cluster.pods().keys() == {"stripped-0", "stripped-1"}, "no worker takes its place"
        assert cluster.status("stripped")["restarts"] == NO_RESTARTS


def test_api_server_marks_each_deletion_and_no_removal_of_a_label(cluster):
    """The operator tells the two apart by it (watch/pods.py)."""
    seen: list[tuple[str, str, bool]] = []
    query = "watch=true&labelSelector=told=yes"
    request = urllib.request.Request(
        f"{cluster._server}{cluster.pods_path}?{query}", headers={"Authorization": f"Bearer {cluster._token}"}
    )
    stream = urllib.request.urlopen(request, context=cluster._tls, timeout=30)

    def watch() -> None:
        while len([s for s in seen if s[0] == "DELETED"]) < 3:
            event = json.loads(stream.readline())
            meta = event["object"]["metadata"]
            seen.append((event["type"], meta["name"], "deletionTimestamp" in meta))

    reader = threading.Thread(target=watch, daemon=True)
    reader.start()
    spec = {"containers": [{"name": "c", "image": "i"}]}
    for name, more in (("pending", {}), ("bound", {"nodeName": "none"}), ("label", {})):
        body = {"metadata": {"name": name, "labels": {"told": "yes"}}, "spec": {**spec, **more}}
        cluster.call("POST", cluster.pods_path, body)
    cluster.call("DELETE", f"{cluster.pods_path}/pending")
    cluster.call("DELETE", f"{cluster.pods_path}/bound", {"gracePeriodSeconds": 0})
    cluster.merge(f"{cluster.pods_path}/label", {"metadata": {"labels": {"told": None}}})
    reader.join(20)
    stream.close()
    assert {s[1:] for s in seen if s[0] == "DELETED"} == {("pending", True), ("bound", True), ("label", False)}


def test_job_that_a_foreign_finalizer_holds_leaves_its_room_to_others(
    cluster, play, operator_process, operator_factory, etcd, eventually
):
    operator_process.stop()
    operator_factory(etcd, cluster.namespace, "--capacity", "--capacity-hysteresis=0")
    pool = Pool(cluster)
    pool.join("only", 1)
    player = play(cluster.create_job("held", maxReplicas=1, template=pool.template()))
    player.may_start = pool.bound
    eventually(lambda: trains(cluster, "held", 1), 60, "it trains")
    cluster.merge(cluster.job_path("held"), {"metadata": {"finalizers": ["example.com/hold"]}})
    following = play(cluster.create_job("next", maxReplicas=1, template=pool.template()))
    following.may_start = pool.bound
    eventually(lambda: cluster.condition("next", "Grown").get("status") == "False", 30, "the next one waits")

    cluster.call("DELETE", cluster.job_path("held"))

    eventually(lambda: "held-0" not in cluster.pods(), 30, "its worker leaves")
    eventually(lambda: trains(cluster, "next", 1), 60, "the next one trains in its room")
    assert cluster.exists("held")
    told = cluster.condition("held", "PodsReady")
    assert told["reason"] == "JobDeleted"
    assert "example.com/hold" in told["message"]
    assert "held-0" not in cluster.pods()
    cluster.merge(cluster.job_path("held"), {"metadata": {"finalizers": None}})
    eventually(lambda: not cluster.exists("held"), 30, "its end")
