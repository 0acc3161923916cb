"""Admission adds to workers what a cloud role, a mesh and a mirror add: the examples train under the default chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.commands import docker, eventually, kubectl, run
from harness.example import digits, images, manifest_of
from harness.jobs import Job, make_folders
from harness.release import WORKER_NODES

API = "admissionregistration.k8s.io"
ROLE = {"name": "AWS_ROLE_ARN", "value": "arn:aws:iam::1:role/trainer"}
FOLDER = "/var/run/secrets/eks.amazonaws.com/serviceaccount"
SOURCE = {"serviceAccountToken": {"audience": "sts.amazonaws.com", "path": "token", "expirationSeconds": 86400}}
CA = {"name": "istiod-ca-cert", "mountPath": "/var/run/secrets/istio"}
SIDECAR = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); signal.pause()"
MIRROR = "mirror.example"


def cel(value: Any) -> str:
    """The value as an expression of CEL, whose lists and maps may hold several types."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: dyn({cel(v)})" for k, v in value.items()) + "}"
    return f"[{', '.join(f'dyn({cel(v)})' for v in value)}]" if isinstance(value, list) else json.dumps(value)


def mutations(proxy: str) -> dict[str, list[tuple[str, str]]]:
    """Paths and values that each platform adds to a worker; ``proxy``: the image of its containers."""
    containers = [
        {"name": "istio-validation", "image": proxy, "command": ["python", "-c", ""]},
        {"name": "istio-proxy", "image": proxy, "command": ["python", "-c", SIDECAR], "restartPolicy": "Always",
         "volumeMounts": [CA]},
    ]  # fmt: skip
    role: list[tuple[str, Any]] = [
        ("/spec/volumes/-", {"name": "aws-iam-token", "projected": {"sources": [SOURCE]}}),
        ("/spec/containers/0/volumeMounts/-", {"name": "aws-iam-token", "mountPath": FOLDER}),
        ("/spec/containers/0/env/-", ROLE),
        ("/spec/containers/0/env/-", {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": f"{FOLDER}/token"}),
    ]
    mesh: list[tuple[str, Any]] = [
        ("/spec/volumes/-", {"name": CA["name"], "configMap": {"name": "kube-root-ca.crt"}}),
        ("/spec/initContainers", containers),
        ("/metadata/labels/istio", "injected"),
    ]
    added = {name: [(path, cel(value)) for path, value in found] for name, found in (("role", role), ("mesh", mesh))}
    return {**added, "mirror": [("/spec/containers/0/image", f'"{MIRROR}/" + object.spec.containers[0].image')]}


@pytest.fixture
def platform(namespace: str) -> Iterator[None]:
    """Its policies bind the pods of the namespace. The nodes have the trainer's image by the mirror's name."""
    served = "v1" if "mutatingadmissionpolicies" in kubectl("get", "--raw", f"/apis/{API}/v1") else "v1beta1"
    trainer = images()["TRAINER_IMAGE"]
    for node in WORKER_NODES:
        tag = ("ctr", "-n", "k8s.io", "images", "tag", "--force")
        docker("exec", node, *tag, f"docker.io/{trainer}", f"{MIRROR}/{trainer}")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    match = {"resourceRules": [rule], "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    items = []
    for name, found in mutations(images()["OPERATOR_IMAGE"]).items():
        patches = ", ".join(f'JSONPatch{{op: "add", path: "{path}", value: {value}}}' for path, value in found)
        patch = {"patchType": "JSONPatch", "jsonPatch": {"expression": f"[{patches}]"}}
        how = {"matchConstraints": match, "failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [patch]}
        for kind, spec in (("", how), ("Binding", {"policyName": f"e2e-{name}"})):
            head = {"apiVersion": f"{API}/{served}", "kind": f"MutatingAdmissionPolicy{kind}"}
            items.append({**head, "metadata": {"name": f"e2e-{name}"}, "spec": spec})
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kubectl("create", "serviceaccount", "trainer", "-n", namespace)
    kubectl("apply", "-f", "-", text=listed)
    container = {"name": "a", "image": trainer, "env": [{"name": "A", "value": "a"}]}
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"a": "a"}}}
    tried = json.dumps({**head, "spec": {"containers": [container]}})

    def all_in_force() -> bool:  # each some time after it was made
        admitted = kubectl("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", text=tried)
        return all(text in admitted for text in (f"{MIRROR}/", ROLE["name"], "istio-proxy"))

    eventually("all three change a pod", all_in_force)
    yield
    kubectl("delete", "-f", "-", "--ignore-not-found", text=listed)


def test_examples_train_if_admission_adds_a_cloud_role_a_mesh_and_a_mirror(platform: None, namespace: str) -> None:
    make_folders(namespace)
    make_folders(namespace, "torchrun/")
    jobs = []
    for manifest in (
        digits("digits", epochs=5, step_seconds=0, replicas=2),
        manifest_of("03-torchrun", values={"EPOCHS": "5"}, place="torchrun/", gpus=0, replicas=1),
    ):
        manifest["spec"]["template"]["spec"]["serviceAccountName"] = "trainer"
        jobs.append(Job(namespace, manifest["metadata"]["name"]))
        jobs[-1].apply(manifest)

    checked = run("elastrain", "doctor", "-n", namespace, check=False).stdout
    for job in jobs:
        job.wait_success(stalled=120)

    assert "with istio-validation, istio-proxy from the cluster" in checked
    assert [job.status.get("restarts", {}).get("user", 0) for job in jobs] == [0, 0]
    for pod in [pod for job in jobs for pod in job.pods]:
        trainer = pod["spec"]["containers"][0]
        assert trainer["image"].startswith(f"{MIRROR}/")
        assert ROLE in trainer["env"]
        assert FOLDER in [m["mountPath"] for m in trainer["volumeMounts"]]
        assert [c["name"] for c in pod["spec"]["initContainers"]] == ["istio-validation", "istio-proxy"]
        assert pod["metadata"]["labels"]["istio"] == "injected"
