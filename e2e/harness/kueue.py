"""Kueue in the cluster, by its own chart, and queues in it."""

from __future__ import annotations

import json
from typing import Any

import yaml

from harness import release
from harness.commands import CACHE, eventually, helm, kubectl, kubectl_json, run
from harness.example import images

NAMESPACE = "kueue-system"
CHART = str(CACHE / "bin/kueue/chart")
"""Beside the controller that `scripts/get-kueue` builds."""
API_VERSION = "kueue.x-k8s.io/v1beta2"
QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOAD = "kueue.x-k8s.io/workload"
CONFIGURATION = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
    "integrations": {
        "frameworks": ["batch/job", "pod"],
        "externalFrameworks": ["ElasticTrainingJob.v1alpha1.elastrain.dev", "WorkerSet.v1alpha1.elastrain.dev"],
    },
}
"""Of docs/kueue.md."""


def install() -> None:
    """Kueue on the control plane, where its image is; afterwards the release's operator queues jobs."""
    repository, tag = images()["KUEUE_IMAGE"].split(":")
    image = {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}
    small = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    values = {
        "controllerManager": {
            "manager": {"image": image, "resources": small},
            "nodeSelector": {"kubernetes.io/hostname": release.CONTROL_PLANE},
            "tolerations": [{"operator": "Exists"}],
        },
        "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(CONFIGURATION)},
    }
    helm(
        *("upgrade", "--install", "kueue", CHART, "--namespace", NAMESPACE, "--create-namespace"),
        *("--values", "-", "--wait", "--timeout", "180s"),
        text=yaml.safe_dump(values),
    )
    probe = json.dumps(_object("ResourceFlavor", "probe"))
    eventually("its webhooks answer", lambda: kubectl("apply", "--dry-run=server", "-f", "-", text=probe))
    release.install(kueue={"enabled": True})


def uninstall() -> None:
    """The opposite. Queues have to be gone: without Kueue, its finalizers hold them and then their kinds."""
    release.install(kueue={"enabled": False})
    helm("uninstall", "kueue", "--namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout", "60s")
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")


def _object(kind: str, name: str, namespace: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def make_queues(namespace: str, teams: dict[str, int]) -> None:
    """A LocalQueue in ``namespace`` and a ClusterQueue for each team, with its GPUs. Teams lend each other the rest."""

    def quotas(gpus: int) -> list[dict[str, Any]]:
        amounts = {"nvidia.com/gpu": gpus, "cpu": 100, "memory": "100Gi"}
        return [{"name": resource, "nominalQuota": amount} for resource, amount in amounts.items()]

    objects = [_object("ResourceFlavor", "e2e")]
    for team, gpus in teams.items():
        group = {
            "coveredResources": ["nvidia.com/gpu", "cpu", "memory"],
            "flavors": [{"name": "e2e", "resources": quotas(gpus)}],
        }
        preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
        objects += [
            _object(
                "ClusterQueue", f"e2e-{team}", cohortName="e2e", namespaceSelector={}, resourceGroups=[group],
                preemption=preemption,
            ),
            _object("LocalQueue", team, namespace, clusterQueue=f"e2e-{team}"),
        ]  # fmt: skip
    kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def remove_queues() -> None:
    """Those of all teams, with the jobs' Workloads in them; Kueue lets them go."""
    for kind in ("workloads", "localqueues", "clusterqueues", "resourceflavors"):
        scope = ("--all-namespaces",) if kind in ("workloads", "localqueues") else ()
        run("kubectl", "delete", f"{kind}.kueue.x-k8s.io", "--all", *scope, "--wait", "--timeout=60s", check=False)


def workloads(namespace: str) -> dict[str, dict[str, Any]]:
    """By name."""
    items = kubectl_json("get", "workloads.kueue.x-k8s.io", "-n", namespace)["items"]
    return {w["metadata"]["name"]: w for w in items}


def queued(manifest: dict[str, Any], queue: str) -> dict[str, Any]:
    """An elastic job in ``queue``: Kueue decides its size."""
    manifest["metadata"].setdefault("labels", {})[QUEUE] = queue
    manifest["spec"].pop("replicas", None)
    return manifest
