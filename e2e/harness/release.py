"""The Helm release and the nodes it runs on."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import yaml

from harness.commands import CLUSTER, ROOT, docker, eventually, helm, kubectl, kubectl_json, run
from harness.example import images

NAMESPACE = "elastrain-system"
CHART = str(ROOT / "charts/elastrain")
CONTROL_PLANE = f"{CLUSTER}-control-plane"
WORKER_NODES = (f"{CLUSTER}-worker", f"{CLUSTER}-worker2")
TAINT = "node-role.kubernetes.io/control-plane"
GPUS_PER_NODE = 2
NODE_LOST = 60
"""Seconds within which Kubernetes finds that a node has stopped (20 in the cluster of `cluster.sh`, 50 by default)."""


def values() -> dict[str, Any]:
    """Our images; the operator on the control plane, so that a worker node can be stopped without it. Of the three
    members of etcd, each has its volume on another node."""
    named = images()
    anywhere = {"tolerations": [{"operator": "Exists", "effect": "NoSchedule", "key": TAINT}]}
    place = {"nodeSelector": {"kubernetes.io/hostname": CONTROL_PLANE}, "tolerations": [{"operator": "Exists"}]}

    def image(name: str) -> dict[str, str]:
        repository, tag = named[name].split(":")
        return {"repository": repository, "tag": tag}

    return {
        "operator": {"image": image("OPERATOR_IMAGE"), **place},
        "etcd": {"image": image("ETCD_IMAGE"), **anywhere},
    }


def volume(name: str, claim: tuple[str, str], path: str, storage_class: str, mode: str) -> dict[str, Any]:
    """A PersistentVolume for one claim (namespace, name) only: the folder ``path`` of the node."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "storageClassName": storage_class,
            "accessModes": [mode],
            "hostPath": {"path": path},
            "claimRef": {"namespace": claim[0], "name": claim[1]},
        },
    }


def etcd_nodes() -> dict[str, str]:
    """Pods of etcd (names), and the node that has the volume of each."""
    return {f"elastrain-etcd-{i}": node for i, node in enumerate((CONTROL_PLANE, *WORKER_NODES))}


def provide_volumes_of_etcd() -> None:
    """Nothing makes volumes in the cluster; these stay as long as the cluster does. Like a node's own disk, each is of
    one node: while that is drained, its member of etcd has to wait."""
    path = "/var/lib/elastrain-etcd"
    for pod, node in etcd_nodes().items():
        docker("exec", node, "install", "-d", "-m", "0777", path)
        disk = volume(pod, (NAMESPACE, f"data-{pod}"), path, "standard", "ReadWriteOnce")
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        disk["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
        kubectl("apply", "-f", "-", text=json.dumps(disk))


def remove_etcd() -> None:
    """Remove etcd with its data: the next `install` makes an empty one."""
    kubectl("delete", "statefulset,persistentvolumeclaim", *_all_of("etcd"), "--wait", "--timeout=60s")
    eventually("no pod of etcd is left", lambda: not _pods_of("etcd"), 60)
    kubectl("delete", "persistentvolume", *etcd_nodes(), "--ignore-not-found", "--wait", "--timeout=60s")
    for node in etcd_nodes().values():
        docker("exec", node, "rm", "-rf", "/var/lib/elastrain-etcd")
    provide_volumes_of_etcd()


def install(chart: str = CHART, **changes: Any) -> None:
    """``helm upgrade --install``, with ``changes`` of top-level values; waits until it is ready."""
    merged = values()
    for key, change in changes.items():
        merged[key] = {**merged.get(key, {}), **change}
    helm(
        *("upgrade", "--install", "elastrain", chart, "--namespace", NAMESPACE, "--create-namespace"),
        *("--values", "-", "--wait", "--timeout", "220s"),
        text=yaml.safe_dump(merged),
    )


def etcdctl() -> list[str]:
    """``etcdctl`` in the etcd pod, as root."""
    query = ("get", "secret", "-n", NAMESPACE, "elastrain-etcd-root", "-o", "jsonpath={.data.password}")
    password = base64.b64decode(run("kubectl", *query, check=False).stdout).decode()
    return ["etcdctl", f"--user=root:{password}"] if password else ["etcdctl"]


def operators() -> set[str]:
    """UIDs of the operator's pods that are ready."""
    return {str(p["metadata"]["uid"]) for p in _pods_of("operator") if _stays_ready(p)}


def uninstall() -> float:
    """``helm uninstall``; returns the seconds it took."""
    start = time.monotonic()
    helm("uninstall", "elastrain", "--namespace", NAMESPACE, "--wait", "--timeout", "60s")
    return time.monotonic() - start


def delete_pod_of(component: str) -> None:
    """Delete the pod of ``operator`` or ``etcd`` and do not wait for it."""
    kubectl("delete", "pod", *_all_of(component), "--wait=false", "--grace-period=1")


def wait_pod_of(component: str, timeout: float = 120) -> None:
    """Until the pod of ``operator`` or ``etcd`` is Ready (again)."""

    def ready() -> bool:
        pods = _pods_of(component)
        return bool(pods) and all(_stays_ready(p) for p in pods)

    eventually(f"the pod of {component} is ready", ready, timeout)


def _all_of(component: str) -> tuple[str, ...]:
    """What `kubectl` is told to mean everything of ``operator`` or ``etcd``."""
    return ("-n", NAMESPACE, "-l", f"app.kubernetes.io/component={component}")


def _pods_of(component: str) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = kubectl_json("get", "pods", *_all_of(component))["items"]
    return pods


def _stays_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def drain_etcd(node: str) -> bool:
    """Whether `kubectl drain` can evict etcd's pod from ``node`` within 20 s. The node takes no pods afterwards."""
    chosen = ("--pod-selector=app.kubernetes.io/component=etcd", "--ignore-daemonsets", "--delete-emptydir-data")
    return run("kubectl", "drain", node, *chosen, "--timeout=20s", check=False).returncode == 0


def wait_pod_gone(pod: str) -> None:
    """Until the pod of the release does not run: it is gone, or waits for its node."""
    running = ("get", "pods", "-n", NAMESPACE, f"--field-selector=metadata.name={pod},status.phase=Running", "-o=name")
    eventually(f"{pod} has ended", lambda: not kubectl(*running).strip(), 60)


def lose_data_of_etcd() -> None:
    """All members of etcd lose their volumes at once, and start with empty ones."""
    take_away("etcd")
    for node in etcd_nodes().values():
        docker("exec", node, "sh", "-c", "rm -rf /var/lib/elastrain-etcd/*")
    bring_back("etcd")


# ---- what an outage takes away ---------------------------------------------------------------------------------------
CONTROLLERS = {"operator": ("deployment", 2), "etcd": ("statefulset", 3)}
"""Kind and replicas of those of the release."""
APISERVER = "/etc/kubernetes/manifests/kube-apiserver.yaml"
"""On the control plane: kubelet runs what is described there."""


def take_away(*components: str) -> None:
    """Scale ``operator`` or ``etcd`` to nothing, and wait until no pod is left."""
    for component in components:
        _scale(component, 0)
    for component in components:
        eventually(f"no pod of {component} is left", lambda c=component: not _pods_of(c), 60)


def bring_back(*components: str, timeout: float = 120) -> None:
    """The opposite: until the pods are Ready."""
    for component in components:
        _scale(component, CONTROLLERS[component][1])
    for component in components:
        wait_pod_of(component, timeout)


def _scale(component: str, replicas: int) -> None:
    kubectl("scale", CONTROLLERS[component][0], *_all_of(component), f"--replicas={replicas}")


def take_away_apiserver() -> None:
    """End the API server, and wait until no server answers."""
    docker("exec", CONTROL_PLANE, "mv", APISERVER, "/etc/kubernetes/")
    eventually("the API server is gone", lambda: not _apiserver_answers(), 60)


def bring_back_apiserver() -> None:
    """The opposite; nothing is done where it has not been taken away."""
    back = f"mv /etc/kubernetes/{Path(APISERVER).name} {APISERVER} 2>/dev/null || true"
    docker("exec", CONTROL_PLANE, "sh", "-c", back)
    eventually("the API server answers", _apiserver_answers, 120)


def _apiserver_answers() -> bool:
    return run("kubectl", "get", "--raw=/readyz", "--request-timeout=5s", check=False).returncode == 0


# ---- nodes ----------------------------------------------------------------------------------------------------------
def advertise_gpus(node: str, gpus: int = GPUS_PER_NODE) -> None:
    """Let ``node`` have simulated GPUs: an extended resource of its status, as a device plugin would report it."""
    path = "/status/capacity/nvidia.com~1gpu"
    patch = json.dumps([{"op": "add", "path": path, "value": str(gpus)}])
    kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", patch)

    def allocatable() -> bool:
        found = kubectl_json("get", "node", node)["status"]["allocatable"].get("nvidia.com/gpu")
        return bool(found == str(gpus))

    eventually(f"{node} has {gpus} GPUs to give", allocatable, 60)


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
