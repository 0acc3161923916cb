"""Gangs of jobs as a scheduler finds them on a real API server: with stand-ins for the CRDs of scheduler-plugins and
Volcano (their documented fields), and Kubernetes' own Workload behind its feature gates."""

from __future__ import annotations

import subprocess
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from charts import Run
from control_plane import ApiServer, control_plane, program
from elastrain.etcd import EtcdClient
from elastrain_cli.etcd_server import EtcdServer
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import gang, manifest
from elastrain_operator.pod.gang import SCHEDULERS
from kube_scheduling import scheduling
from node_pool import Pool
from operator_process import OperatorProcess, operator_account
from pod_groups import allow, install
from raw_cluster import TEMPLATE, Cluster
from warm import Warm

pytestmark = pytest.mark.apiserver

VERSION = "--kube-version=1.34.0"


def bind(apiserver: ApiServer, namespace: str, scheduler: str, helm: Run) -> str:
    """The chart's admission policies for the operator of a namespace. Returns the user."""
    settings = (
        f"--namespace={namespace}",
        "--set=fullnameOverride=tested-operator",
        f"--set=gang.scheduler={scheduler}",
    )
    made = helm("template", "x", "charts/elastrain", *settings, "--show-only=templates/admission.yaml", VERSION)
    applied = apiserver.kubectl("apply", "-f", "-", document=made.stdout)
    assert applied.returncode == 0, made.stderr + applied.stderr
    return f"system:serviceaccount:{namespace}:tested-operator"


def found(cluster: Cluster, path: str) -> dict[str, Any] | None:
    try:
        return cluster.call("GET", path)
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return None


@pytest.mark.parametrize("scheduler", ["coscheduling", "volcano"])
def test_gang_follows_its_job(
    apiserver: ApiServer,
    cluster: Cluster,
    etcd: Any,
    operator_factory: Callable[..., Any],
    eventually: Callable[..., None],
    helm: Run,
    scheduler: str,
) -> None:
    install(apiserver, scheduler)
    allow(apiserver, cluster.namespace, scheduler)
    operator = bind(apiserver, cluster.namespace, scheduler, helm)
    foreign = {
        "apiVersion": SCHEDULERS[scheduler].api,
        "kind": "PodGroup",
        "metadata": {"name": "foreign", "namespace": cluster.namespace},
    }

    def is_refused() -> bool:
        done = apiserver.kubectl("create", f"--as={operator}", "--dry-run=server", "-f", "-", document=foreign)
        return "only objects that an ElasticTrainingJob owns" in done.stderr

    eventually(is_refused, 30, "a stolen token writes no other PodGroup")
    operator_factory(etcd, cluster.namespace, f"--gang-scheduler={scheduler}")
    spec = {**TEMPLATE["spec"], "schedulerName": "volcano"}
    keys = cluster.create_job("digits", minReplicas=2, maxReplicas=3, template={"spec": spec})
    eventually(lambda: len(cluster.pods()) == 3, 60, "three workers exist")
    job = JobRef(cluster.namespace, "digits", keys.uid)
    path = SCHEDULERS[scheduler].path(job)
    made = found(cluster, path)
    assert made is not None
    assert (made["spec"]["minMember"], made["metadata"]["ownerReferences"]) == (2, [manifest.owner(job)])
    for pod in cluster.pods().values():
        meta = pod["metadata"]
        names = (
            meta["labels"].get(gang.COSCHEDULING_LABEL),
            (meta.get("annotations") or {}).get(gang.VOLCANO_GROUP),
        )
        assert names == ((gang.name(job), None) if scheduler == "coscheduling" else (None, gang.name(job)))
        assert pod["spec"]["schedulerName"] == "volcano"
    eventually(lambda: cluster.condition("digits", "GangScheduled").get("reason") == "Grouped", 30, "it says so")
    cluster.patch_job("digits", minReplicas=1)
    eventually(lambda: (found(cluster, path) or {})["spec"]["minMember"] == 1, 30, "the gang has the new minimum")
    cluster.patch_job("digits", suspend=True)
    eventually(lambda: found(cluster, path) is None, 60, "a suspended job needs no gang")


def test_job_runs_without_a_gang_if_the_cluster_has_no_such_api(
    apiserver: ApiServer,
    cluster: Cluster,
    etcd: Any,
    operator_factory: Callable[..., Any],
    eventually: Callable[..., None],
) -> None:
    """Kubernetes' PodGroup: the API is newer than the server, or its feature gate is off."""
    allow(apiserver, cluster.namespace, "native")
    operator_factory(etcd, cluster.namespace, "--gang-scheduler=native")
    cluster.create_job("digits", maxReplicas=2)
    eventually(lambda: len(cluster.pods()) == 2, 60, "two workers exist")
    assert all("schedulingGroup" not in p["spec"] for p in cluster.pods().values())
    missing = "NotGrouped"
    eventually(lambda: cluster.condition("digits", "GangScheduled").get("reason") == missing, 30, "it says why")

    def is_recorded() -> bool:
        served = "does not serve PodGroup of scheduling.k8s.io/v1beta1"
        return (missing, True) in {(r, served in m) for r, m in cluster.events("digits")}

    eventually(is_recorded, 30, "an event says the same")


# ---- Kubernetes' own gangs -------------------------------------------------------------------------------------------
GATES = "GenericWorkload=true"


def minor() -> int:
    """Of the API server that the tests start: 35 of 1.35.4."""
    done = subprocess.run([program("kube-apiserver", "ELASTRAIN_KUBE_APISERVER"), "--version"], capture_output=True)
    return int(done.stdout.decode().split("v1.")[1].split(".")[0])


@pytest.fixture
def native(tmp_path: Path, light: Warm, etcd: EtcdServer) -> Iterator[Cluster]:
    """A namespace of an API server with native gangs and its scheduler, and an operator."""
    if minor() < 37:
        pytest.skip("native gangs (scheduling.k8s.io/v1beta1) begin with Kubernetes 1.37: make test-kubernetes")
    flags = (f"--feature-gates={GATES}", "--runtime-config=scheduling.k8s.io/v1beta1=true")
    with control_plane(tmp_path, *flags) as server, scheduling(server, tmp_path, "-*", gates=GATES):
        found = Cluster(server.kubeconfig, "gangs")
        found.call("POST", "/api/v1/namespaces", {"metadata": {"name": "gangs"}})
        found.call("POST", "/api/v1/namespaces/gangs/serviceaccounts", {"metadata": {"name": "default"}})
        access = operator_account(server, tmp_path / "operator", "gangs")
        allow(server, "gangs", "native")
        options = (f"--etcd-endpoints={etcd.endpoint}", "--namespaces=gangs", "--gang-scheduler=native")
        operator = OperatorProcess(light, access, tmp_path / "operator.log", *options)
        yield found
        operator.stop()


@pytest.mark.nightly
def test_native_gang_is_bound_together_and_its_minimum_moves(
    native: Cluster, client: EtcdClient, eventually: Callable[..., None]
) -> None:
    pool = Pool(native)
    pool.join("one", 2)
    keys = native.create_job("job", minReplicas=3, maxReplicas=4, template=pool.template())
    path = SCHEDULERS["native"].path(JobRef("gangs", "job", keys.uid))

    def bound() -> int:
        return sum(bool(p["spec"].get("nodeName")) for p in native.pods().values())

    def group() -> dict[str, Any]:
        return found(native, path) or {}

    def waits() -> bool:
        conditions = group().get("status", {}).get("conditions", [])
        return any(c["reason"] == "Unschedulable" and c["status"] == "False" for c in conditions)

    eventually(lambda: len(native.pods()) == 4, 60, "its workers exist")
    eventually(waits, 60, "there is room for two of three")
    assert bound() == 0, "none is bound alone"
    named = {p["spec"]["schedulingGroup"]["podGroupName"] for p in native.pods().values()}
    assert named == {gang.name(JobRef("gangs", "job", keys.uid))}
    before = group()
    pool.join("two", 1)
    eventually(lambda: bound() == 3, 60, "the minimum is bound together")
    native.patch_job("job", minReplicas=2)
    eventually(lambda: group()["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2, 30, "the minimum moves")
    assert group()["metadata"]["uid"] == before["metadata"]["uid"], "in the same object"
    pool.join("three", 1)
    eventually(lambda: bound() == 4, 60, "workers above the minimum are bound one by one")
