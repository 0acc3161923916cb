"""Operator, etcd and default workers satisfy the Pod Security Standard "restricted": by its published rules, and by the
API server's own admission.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from elastrain.etcd import EtcdConfig
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest

WORKER_ETCD = WorkerEtcd(endpoints="etcd:2379", secret="etcd", user=True, ca=True)
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WORKER_ETCD)
ALLOWED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
CHARTS = {
    "defaults": (),
    "persistent": ("etcd.persistence.enabled=true",),
    "credentials": ("etcd.endpoints[0]=etcd.example:2379", "etcd.credentials.secretName=etcd"),
}


# ---- the published rules ---------------------------------------------------------------------------------------------
def violations(spec: dict[str, Any]) -> list[str]:
    """Violations of "restricted" (v1.31) in a pod spec; Linux only."""
    pod = spec.get("securityContext") or {}
    found = [f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    for volume in spec.get("volumes") or []:
        kinds = volume.keys() - {"name"}
        if not kinds <= ALLOWED_VOLUMES:
            found.append(f"volume {volume['name']} is a {kinds}")
    if pod.get("runAsUser") == 0:
        found.append("the pod runs as user 0")
    if pod.get("sysctls"):
        found.append("sysctls are set")
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        found += [f"{container['name']}: {words}" for words in _container(pod, container)]
    return found


def _container(pod: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    capabilities = own.get("capabilities") or {}
    effective = {**pod, **own}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "may escalate privileges"
    if "ALL" not in (capabilities.get("drop") or []):
        yield "does not drop all capabilities"
    if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield f"adds capabilities {capabilities['add']}"
    if effective.get("runAsNonRoot") is not True:
        yield "may run as root"
    if own.get("runAsUser") == 0:
        yield "runs as user 0"
    if (effective.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "has no seccomp profile"
    if own.get("procMount") not in (None, "Default"):
        yield f"procMount is {own['procMount']}"
    for port in container.get("ports") or []:
        if port.get("hostPort"):
            yield f"takes port {port['hostPort']} of its node"


def worker(make_spec: Any, **pod_spec: Any) -> dict[str, Any]:
    container = {"name": "trainer", "image": "trainer:1", "command": ["train"], **pod_spec.pop("trainer", {})}
    spec = make_spec(template={"spec": {"containers": [container], **pod_spec}})
    return manifest.pod(JobRef("ns", "job", "00000000-0000-0000-0000-000000000000", 1), spec, 0, CONFIG)


# ---- what we render --------------------------------------------------------------------------------------------------
WORKERS: dict[str, dict[str, Any]] = {
    "silent": {},
    "with more containers": {"initContainers": [{"name": "fetch", "image": "fetch:1"}]},
    "that says where files belong": {"securityContext": {"fsGroup": 2000}},
    "that says its user": {"trainer": {"securityContext": {"runAsUser": 1000}}},
    "that says null": {"securityContext": None, "trainer": {"securityContext": {"capabilities": None}}},
    "with volumes": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
}


@pytest.mark.parametrize("fields", WORKERS.values(), ids=WORKERS.keys())
def test_worker_is_restricted_by_default(make_spec, fields):
    assert violations(worker(make_spec, **fields)["spec"]) == []


def test_fields_of_the_template_are_kept(make_spec):
    asked = {"runAsUser": 0, "capabilities": {"add": ["SYS_PTRACE"]}}
    root = worker(make_spec, trainer={"securityContext": asked})["spec"]
    assert root["containers"][0]["securityContext"] == asked
    assert "runAsNonRoot" not in root["securityContext"], "the kubelet would refuse to start it"

    two = worker(make_spec, trainer={"securityContext": asked}, initContainers=[{"name": "a", "image": "a:1"}])["spec"]
    assert "runAsNonRoot" not in two["securityContext"], "one container as root is enough"

    privileged = worker(make_spec, trainer={"securityContext": {"privileged": True}})["spec"]
    assert privileged["containers"][0]["securityContext"] == {"privileged": True}

    rdma = worker(make_spec, trainer={"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}})["spec"]
    assert rdma["containers"][0]["securityContext"] == {
        "capabilities": {"add": ["IPC_LOCK"], "drop": ["ALL"]},
        "allowPrivilegeEscalation": False,
    }
    admin = worker(make_spec, trainer={"securityContext": {"capabilities": {"add": ["SYS_ADMIN"], "drop": []}}})["spec"]
    assert admin["containers"][0]["securityContext"] == {"capabilities": {"add": ["SYS_ADMIN"], "drop": []}}

    whole = worker(make_spec, securityContext={"runAsUser": 0}, initContainers=[{"name": "a", "image": "a:1"}])["spec"]
    assert whole["securityContext"] == {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    assert "securityContext" not in whole["initContainers"][0]


def pod_specs(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod specs by name of their owner, with the volumes of a StatefulSet's claims."""
    found = {}
    for m in manifests:
        if m["kind"] in ("Deployment", "StatefulSet"):
            spec, claims = m["spec"]["template"]["spec"], m["spec"].get("volumeClaimTemplates", ())
            named = [c["metadata"]["name"] for c in claims]
            volumes = [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in named]
            found[m["metadata"]["name"]] = {**spec, "volumes": [*spec.get("volumes", ()), *volumes]}
    return found


@pytest.mark.parametrize("values", CHARTS.values(), ids=CHARTS.keys())
def test_operator_and_etcd_are_restricted_and_write_to_volumes_only(rendered, values):
    found = pod_specs(rendered(*values))
    assert "demo-elastrain" in found
    for spec in found.values():
        assert violations(spec) == []
        assert all(c["securityContext"]["readOnlyRootFilesystem"] is True for c in spec["containers"])


def test_the_checker_finds_violations():
    container = {"name": "c", "securityContext": {"privileged": True}, "ports": [{"hostPort": 80}]}
    spec = {"hostNetwork": True, "volumes": [{"name": "v", "hostPath": {}}], "containers": [container]}
    assert len(violations(spec)) == 8


# ---- what the API server admits --------------------------------------------------------------------------------------
def refusal(cluster: Any, spec: dict[str, Any]) -> str:
    """Why the API server does not admit a pod; empty if it does. (A dry run is admitted like a real request.)"""
    try:
        cluster.call("POST", f"{cluster.pods_path}?dryRun=All", {"metadata": {"name": "tried"}, "spec": spec})
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read().decode()}"
    return ""


@pytest.fixture
def restricted(cluster, make_spec, eventually):
    """A namespace in which the API server enforces the standard: it refuses a worker that requests root."""
    enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    cluster.merge(f"/api/v1/namespaces/{cluster.namespace}", enforce)
    root = worker(make_spec, trainer={"securityContext": {"runAsUser": 0}})["spec"]
    eventually(lambda: "violates PodSecurity" in refusal(cluster, root), 10, "the API server enforces the standard")
    return cluster


@pytest.mark.apiserver
@pytest.mark.parametrize("fields", WORKERS.values(), ids=WORKERS.keys())
def test_the_api_server_admits_the_worker_under_the_enforced_standard(restricted, make_spec, fields):
    assert refusal(restricted, worker(make_spec, **fields)["spec"]) == ""


@pytest.mark.apiserver
def test_the_api_server_admits_operator_and_etcd_under_the_enforced_standard(restricted, rendered):
    for spec in pod_specs(rendered()).values():
        assert refusal(restricted, {**spec, "serviceAccountName": "default"}) == ""
