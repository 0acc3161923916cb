"""What a stolen token of the operator can do with objects other than pods: attacks on a real API server."""

from __future__ import annotations

import time

import pytest

from elastrain.api import names
from elastrain_operator.facts import DisruptionBudget
from elastrain_operator.job.objects import budget_manifest
from elastrain_operator.pod import manifest as manifests
from elastrain_operator.pod import workerset
from elastrain_operator.pod.manifest import secret_name
from stolen_token import ACCOUNT, CONFIG, MERGE, TEMPLATE, Body, Stolen, altered

pytestmark = pytest.mark.apiserver


# ---- the operator's own work is accepted -----------------------------------------------------------------------------
def test_other_objects_of_jobs_are_accepted(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    base = f"/api/v1/namespaces/{job.namespace}"
    secret = manifests.secret(job, "u", "p", b"ca")
    assert not stolen.attempt("POST", f"{base}/secrets", secret)
    assert not stolen.attempt("PUT", f"{base}/secrets/{secret_name(job)}", secret)
    budget = budget_manifest(job, DisruptionBudget((0, 1)))
    path = f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets/{budget['metadata']['name']}"
    for ordinals in ((0, 1), (1,)):
        applied = budget_manifest(job, DisruptionBudget(ordinals))
        query = "?fieldManager=elastrain-operator&force=true"
        assert not stolen.attempt("PATCH", path + query, applied, "application/apply-patch+yaml")
    assert not stolen.attempt("DELETE", path)
    event = {
        "metadata": {"name": f"e-{job.uid}"},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job.name,
            "namespace": job.namespace,
        },
        "reason": "Test",
        "type": "Normal",
    }
    assert not stolen.attempt("POST", f"{base}/events", event)
    counted = f"{base}/events/{event['metadata']['name']}"
    assert not stolen.attempt("PATCH", counted, {"count": 2}, MERGE)
    lease = {"metadata": {"name": ACCOUNT}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 10}}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{stolen.release}/leases"
    assert not stolen.attempt("POST", leases, lease)


def test_operator_deletes_workers_and_ended_jobs(stolen: Stolen) -> None:
    job, spec = stolen.job(f"job-{time.monotonic_ns()}", ttlSecondsAfterFinished=0)
    pods = f"/api/v1/namespaces/{job.namespace}/pods"
    assert not stolen.attempt("POST", pods, manifests.pod(job, spec, 0, CONFIG))
    assert not stolen.attempt("DELETE", f"{pods}/{job.name}-0")
    path = stolen.admin.job_path(job.name)
    assert "have ended" in stolen.attempt("DELETE", path)
    ended = {"status": {"completionTime": "2030-01-01T00:00:00Z"}}
    assert not stolen.attempt("PATCH", f"{path}/status", ended, MERGE)
    assert not stolen.attempt("DELETE", path)


# ---- attacks with other objects --------------------------------------------------------------------------------------
def test_secrets_of_others_are_neither_changed_nor_created(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    base = f"/api/v1/namespaces/{job.namespace}/secrets"
    stolen.admin.call("POST", base, {"metadata": {"name": "theirs"}, "stringData": {"password": "x"}})
    ours = manifests.secret(job, "u", "p", b"ca")
    take_over = altered(ours, lambda s: s["metadata"].update(name="theirs"))
    assert "ElasticTrainingJob owns" in stolen.attempt("PUT", f"{base}/theirs", take_over)
    assert "etcd credentials" in stolen.attempt("POST", base, altered(ours, lambda s: s["metadata"].update(name="new")))
    token = altered(
        ours,
        lambda s: s.update(
            type="kubernetes.io/service-account-token",
            data={},
            metadata={**s["metadata"], "annotations": {"kubernetes.io/service-account.name": "powerful"}},
        ),
    )
    assert "etcd credentials" in stolen.attempt("POST", base, token)
    orphan = altered(ours, lambda s: s["metadata"].pop("ownerReferences"))
    assert "ElasticTrainingJob owns" in stolen.attempt("POST", base, orphan)
    assert "cannot get" in stolen.attempt("GET", f"{base}/theirs")


def test_budgets_of_others_are_neither_changed_nor_deleted(stolen: Stolen) -> None:
    path = f"/apis/policy/v1/namespaces/{stolen.admin.namespace}/poddisruptionbudgets"
    theirs = {"metadata": {"name": "theirs"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    stolen.admin.call("POST", path, theirs)
    assert "ElasticTrainingJob owns" in stolen.attempt("DELETE", f"{path}/theirs")
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    all_pods = altered(
        budget_manifest(job, DisruptionBudget((0,))), lambda b: b["spec"].update(selector={"matchLabels": {"x": "y"}})
    )
    assert "workers of one job" in stolen.attempt("POST", path, all_pods)


def test_sets_of_workers_of_others_are_not_written(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    path, made = workerset.path(job), workerset.manifest(job, 2)
    where, name = path.rsplit("/", 1)

    def write(called: str, body: Body) -> str:
        body["metadata"]["name"] = called
        return stolen.attempt("PATCH", f"{where}/{called}?fieldManager=x", body, "application/apply-patch+yaml")

    assert not write(name, made)
    assert "of one job" in write("theirs", made)
    assert "ElasticTrainingJob owns" in write("orphan", altered(made, lambda s: s["metadata"].pop("ownerReferences")))


def test_running_jobs_are_not_deleted(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    assert "have ended" in stolen.attempt("DELETE", stolen.admin.job_path(job.name))


def test_leases_and_events_of_others_are_not_written(stolen: Stolen) -> None:
    lease = {"metadata": {"name": "another"}, "spec": {"holderIdentity": "me"}}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{stolen.release}/leases"
    assert "its own Lease" in stolen.attempt("POST", leases, lease)
    event = {
        "metadata": {"name": "forged"},
        "involvedObject": {"kind": "Pod", "name": "x", "namespace": stolen.admin.namespace},
        "reason": "Forged",
        "type": "Normal",
    }
    events = f"/api/v1/namespaces/{stolen.admin.namespace}/events"
    assert "about ElasticTrainingJobs only" in stolen.attempt("POST", events, event)


ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
NAMED = {"metadata": {"name": "x"}}
OTHERS = {
    "bind a pod": ("/api/v1/namespaces/{n}/pods/x/binding", {**NAMED, "target": {"name": "nodeName"}}),
    "request a token": ("/api/v1/namespaces/{n}/serviceaccounts/powerful/token", {"spec": {}}),
    "bind a role": ("/apis/rbac.authorization.k8s.io/v1/namespaces/{n}/rolebindings", {**NAMED, "roleRef": ROLE}),
    "exec": ("/api/v1/namespaces/{n}/pods/x/exec", {}),
    "evict": ("/api/v1/namespaces/{n}/pods/x/eviction", NAMED),
    "deployment": ("/apis/apps/v1/namespaces/{n}/deployments", NAMED),
    "job": (
        "/apis/elastrain.dev/v1alpha1/namespaces/{n}/elastictrainingjobs",
        {**NAMED, "spec": {"maxReplicas": 1, "template": TEMPLATE}},
    ),
}


@pytest.mark.parametrize(("path", "body"), OTHERS.values(), ids=OTHERS.keys())
def test_other_rights_are_not_granted(stolen: Stolen, path: str, body: Body) -> None:
    assert "cannot create" in stolen.attempt("POST", path.format(n=stolen.admin.namespace), body)


def test_the_policies_bind_no_other_account(stolen: Stolen) -> None:
    pod = {"metadata": {"name": "free"}, "spec": {"containers": [{"name": "c", "image": "i:1"}], "hostNetwork": True}}
    stolen.admin.call("POST", f"{stolen.admin.pods_path}?dryRun=All", pod)
