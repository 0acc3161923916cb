"""The Helm release and the nodes it runs on."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import yaml

from harness.commands import CLUSTER, ROOT, docker, eventually, helm, kubectl, kubectl_json, run
from harness.example import images

NAMESPACE = "elastrain-system"
CHART = str(ROOT / "charts/elastrain")
PREVIOUS = str(ROOT / "e2e/charts/previous.tgz")
"""The chart that users have: `scripts/keep-chart` keeps it."""
WORKER_NODES = (f"{CLUSTER}-worker", f"{CLUSTER}-worker2")
GPUS_PER_NODE = 2


def values() -> dict[str, Any]:
    """Our images; operator and etcd on the control plane, so that a worker node can be stopped without them."""
    named = images()
    place = {
        "nodeSelector": {"kubernetes.io/hostname": f"{CLUSTER}-control-plane"},
        "tolerations": [{"operator": "Exists"}],
    }

    def image(name: str) -> dict[str, str]:
        repository, tag = named[name].split(":")
        return {"repository": repository, "tag": tag}

    return {
        "operator": {"image": image("OPERATOR_IMAGE"), **place},
        "etcd": {"image": image("ETCD_IMAGE"), "persistence": {"enabled": True}, **place},
    }


def install(chart: str = CHART, **changes: Any) -> None:
    """``helm upgrade --install``, with ``changes`` of top-level values; waits until it is ready."""
    merged = values()
    for key, change in changes.items():
        merged[key] = {**merged.get(key, {}), **change}
    helm(
        *("upgrade", "--install", "elastrain", chart, "--namespace", NAMESPACE, "--create-namespace"),
        *("--values", "-", "--wait", "--timeout", "120s"),
        text=yaml.safe_dump(merged),
    )


def etcdctl() -> list[str]:
    """``etcdctl`` in the etcd pod, as root."""
    query = ("get", "secret", "-n", NAMESPACE, "elastrain-etcd-root", "-o", "jsonpath={.data.password}")
    password = base64.b64decode(run("kubectl", *query, check=False).stdout).decode()
    return ["etcdctl", f"--user=root:{password}"] if password else ["etcdctl"]


def operators() -> set[str]:
    """UIDs of the operator's pods that are ready."""
    pods = kubectl_json("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")["items"]
    return {
        str(p["metadata"]["uid"])
        for p in pods
        if "deletionTimestamp" not in p["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
    }


def uninstall() -> float:
    """``helm uninstall``; returns the seconds it took."""
    start = time.monotonic()
    helm("uninstall", "elastrain", "--namespace", NAMESPACE, "--wait", "--timeout", "60s")
    return time.monotonic() - start


def delete_pod_of(component: str) -> None:
    """Delete the pod of ``operator`` or ``etcd`` and do not wait for it."""
    label = f"app.kubernetes.io/component={component}"
    kubectl("delete", "pod", "-n", NAMESPACE, "-l", label, "--wait=false", "--grace-period=1")


def wait_pod_of(component: str) -> None:
    """Until the pod of ``operator`` or ``etcd`` is Ready (again)."""

    def ready() -> bool:
        label = f"app.kubernetes.io/component={component}"
        pods = kubectl_json("get", "pods", "-n", NAMESPACE, "-l", label)["items"]
        return bool(pods) and all(
            "deletionTimestamp" not in p["metadata"]
            and any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))
            for p in pods
        )

    eventually(f"the pod of {component} is ready", ready, 120)


# ---- nodes ----------------------------------------------------------------------------------------------------------
def advertise_gpus(node: str) -> None:
    """Let ``node`` have simulated GPUs: an extended resource of its status, as a device plugin would report it."""
    path = "/status/capacity/nvidia.com~1gpu"
    patch = json.dumps([{"op": "add", "path": path, "value": str(GPUS_PER_NODE)}])
    kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", patch)

    def allocatable() -> bool:
        found = kubectl_json("get", "node", node)["status"]["allocatable"].get("nvidia.com/gpu")
        return bool(found == str(GPUS_PER_NODE))

    eventually(f"{node} has {GPUS_PER_NODE} GPUs to give", allocatable, 60)


def remove_shared(path: str) -> None:
    """Remove what workers wrote below ``/shared``; as root of a node, for it belongs to another user than ours."""
    docker("exec", WORKER_NODES[0], "sh", "-c", f"rm -rf /shared/{path}")


def node_ready(node: str) -> bool:
    conditions = kubectl_json("get", "node", node)["status"]["conditions"]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def stop_node(node: str) -> None:
    docker("stop", "--time", "5", node)


def start_node(node: str) -> None:
    """Start it, if it is stopped, and wait until it can take workers again."""
    docker("start", node)
    eventually(f"{node} is Ready", lambda: node_ready(node), 120)
    advertise_gpus(node)
