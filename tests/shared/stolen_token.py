"""The operator's token in the hands of a thief: the chart's rights and policies on a real API server."""

from __future__ import annotations

import copy
import json
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from charts import Run, operator
from conditions import eventually
from elastrain.api import names
from elastrain.etcd import EtcdConfig
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest as manifests
from elastrain_resource.job import JobSpec
from raw_cluster import Cluster

if TYPE_CHECKING:
    from control_plane import ApiServer

Body = dict[str, Any]
MERGE = "application/merge-patch+json"
ACCOUNT = "stolen-elastrain"
CONFIG = OperatorConfig(
    etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379", user=True, ca=True, per_job=True)
)
TEMPLATE = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
    "spec": {
        "serviceAccountName": "trainer",
        "initContainers": [{"name": "fetch", "image": "fetch:1", "command": ["fetch"], "args": ["all"]}],
        "containers": [
            {
                "name": "trainer",
                "image": "trainer:1",
                "command": ["python", "train.py"],
                "args": ["--epochs=3"],
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
                "envFrom": [{"secretRef": {"name": "more"}}],
                "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "8Gi"}},
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "keys", "mountPath": "/keys"}],
            },
            {"name": "sidecar", "image": "sidecar:1"},
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "both", "projected": {"sources": [{"secret": {"name": "keys"}}, {"configMap": {"name": "c"}}]}},
        ],
    },
}


PLAIN = {"spec": {"containers": [{"name": "trainer", "image": "m:1", "command": ["python"]}]}}


def altered(pod: Body, change: Callable[[Body], object]) -> Body:
    copied = copy.deepcopy(pod)
    change(copied)
    return copied


def trainer(pod: Body) -> Body:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")


class Stolen:
    """The token of the operator, and what the API server answers to it."""

    def __init__(self, apiserver: ApiServer, helm: Run, home: Path, *options: str) -> None:
        self.admin = Cluster(apiserver.kubeconfig, f"tenant-{time.monotonic_ns()}")
        release = f"release-{time.monotonic_ns()}"
        for namespace in (self.admin.namespace, release, f"{release}-empty", f"{release}-plain"):
            self.admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            for account in ("default", "trainer", "powerful"):
                path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
                self.admin.call("POST", path, {"metadata": {"name": account}})
        settings = (
            "--set=crds.install=false",
            "--set=rbac.aggregateToDefaultRoles=false",
            f"--namespace={release}",
            *options,
        )
        made = helm("template", "stolen", "charts/elastrain", "--kube-version=1.34.0", *settings)
        kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
        self.manifests = [m for m in yaml.safe_load_all(made.stdout) if m]
        chosen = [m for m in self.manifests if m["kind"] in kinds or m["kind"].startswith("ValidatingAdmission")]
        applied = apiserver.kubectl("apply", "-f", "-", document=yaml.safe_dump_all(chosen))
        assert applied.returncode == 0, applied.stderr
        self.release = release
        account = operator(self.manifests)["spec"]["template"]["spec"]["serviceAccountName"]
        answer = self.admin.call(
            "POST",
            f"/api/v1/namespaces/{release}/serviceaccounts/{account}/token",
            {"spec": {"expirationSeconds": 7200}},
        )
        config = yaml.safe_load(apiserver.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": answer["status"]["token"]}
        (home / "stolen").write_text(yaml.safe_dump(config))
        self.thief = Cluster(home / "stolen", self.admin.namespace)
        self.apiserver = apiserver

    def remove(self) -> None:
        kinds = ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ClusterRoleBinding", "ClusterRole")
        named = [f"{m['kind']}/{m['metadata']['name']}" for m in self.manifests if m["kind"] in kinds]
        self.apiserver.kubectl("delete", "--wait=false", *named)

    def job(self, name: str, template: Body = TEMPLATE, namespace: str = "", **spec: Any) -> tuple[JobRef, JobSpec]:
        where = namespace or self.admin.namespace
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {"maxReplicas": 4, "template": template, **spec},
        }
        path = f"/apis/{names.API_VERSION}/namespaces/{where}/{names.PLURAL}"
        made = self.admin.call("POST", path, body)
        job, parsed = JobRef(where, name, made["metadata"]["uid"], 1), JobSpec.model_validate(made["spec"])
        worker = manifests.pod(job, parsed, 0, CONFIG)
        forged = altered(worker, lambda p: p["spec"].update(serviceAccountName="powerful"))
        words = ("template.spec of the job", "pod-security.kubernetes.io")
        eventually(lambda: any(w in self.create(forged) for w in words), what="the API server finds the job")
        return job, parsed

    def attempt(self, method: str, path: str, body: Body | None = None, content: str = "application/json") -> str:
        """Empty: the API server accepts the request; else its refusal."""
        try:
            self.thief.call(method, path, body, content)
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["message"])
        return ""

    def create(self, pod: Body) -> str:
        namespace = pod["metadata"]["namespace"]
        return self.attempt("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)


@pytest.fixture(scope="module")
def stolen(apiserver: ApiServer, helm: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stolen]:
    found = Stolen(apiserver, helm, tmp_path_factory.mktemp("stolen"))
    job, spec = found.job("first")
    pod = manifests.pod(job, spec, 0, CONFIG)
    orphan = copy.deepcopy(pod)
    del orphan["metadata"]["ownerReferences"]
    running = f"{found.admin.job_path(job.name)}?dryRun=All"
    eventually(  # each policy by itself
        lambda: bool(found.create(orphan)) and not found.create(pod) and bool(found.attempt("DELETE", running)),
        within=30,
        what="the API server reads the policies",
        pause=0.1,
    )
    yield found
    found.remove()


@pytest.fixture
def worker(stolen: Stolen) -> Body:
    """A worker as the operator makes it."""
    job, spec = stolen.job(f"job-{time.monotonic_ns()}")
    return manifests.pod(job, spec, 3, CONFIG)
