"""A control plane on which nodes come and go by Karpenter: its kwok provider makes them, kwok keeps them alive,
Kubernetes' own scheduler binds pods, and its controllers hold disruption budgets and taints in force. Only containers
are played."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench_harness.processes import free_ports
from control_plane import CACHE, ApiServer, _missing, control_plane, program, running
from kube_scheduling import scheduling
from raw_cluster import Cluster

GPU = "nvidia.com/gpu"
GPUS_PER_NODE = 2
CONTROLLERS = (
    "node-lifecycle-controller", "taint-eviction-controller", "disruption-controller",
    "pod-garbage-collector-controller",
)  # fmt: skip


def built() -> Path:
    """The folder that ``scripts/get-karpenter`` makes. Skips without it (fails if ELASTRAIN_REQUIRE_KARPENTER=1)."""
    folder = CACHE / "karpenter"
    if not (folder / "karpenter").exists():
        _missing(f"there is no {folder}/karpenter", "ELASTRAIN_REQUIRE_KARPENTER", "scripts/get-karpenter")
    return folder


@dataclass(frozen=True)
class Plane:
    """A control plane with Karpenter."""

    server: ApiServer
    metrics_port: int

    def evaluations(self) -> float:
        """How often Karpenter has looked for an underused node to consolidate."""
        name = "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count"
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        chosen = (x for x in lines if x.startswith(name) and '"single"' in x and '"underutilized"' in x)
        return sum(float(line.rpartition(" ")[2]) for line in chosen)


@contextlib.contextmanager
def karpenter_plane(home: Path) -> Iterator[Plane]:
    """All of it, ended with the block. Skips without one of the programs."""
    folder = built()
    kwok = program("kwok", "ELASTRAIN_KWOK", "ELASTRAIN_REQUIRE_KARPENTER", "scripts/get-kwok")
    port, metrics, health = free_ports(3)
    with control_plane(home) as server, scheduling(server, home, *CONTROLLERS):
        _install(server, folder)
        argv = [
            kwok, f"--kubeconfig={server.kubeconfig}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40", f"--config={_stages(home)}", f"--server-address=127.0.0.1:{port}",
        ]  # fmt: skip
        with running(argv, home / "kwok.log", home), _karpenter(server, folder, home, metrics, health):
            yield Plane(server, metrics)


@contextlib.contextmanager
def _karpenter(server: ApiServer, folder: Path, home: Path, metrics: int, health: int) -> Iterator[None]:
    types = home / "instance-types.json"
    types.write_text(json.dumps([_gpu_node()]))
    environ = {
        "KUBECONFIG": str(server.kubeconfig), "DISABLE_LEADER_ELECTION": "true", "INSTANCE_TYPES_FILE_PATH": str(types),
        "METRICS_PORT": str(metrics), "HEALTH_PROBE_PORT": str(health), "BATCH_IDLE_DURATION": "1s",
    }  # fmt: skip
    argv = ["env", *(f"{k}={v}" for k, v in environ.items()), str(folder / "karpenter")]
    with running(argv, home / "karpenter.log", home):
        yield


def _stages(home: Path) -> Path:
    """kwok's stages of nodes alone: containers are played by the tests, which end them as an agent does."""
    stages = [s for s in yaml.safe_load_all((CACHE / "kwok-stages").read_text()) if s]
    path = home / "stages.yaml"
    path.write_text(yaml.safe_dump_all(s for s in stages if s["spec"]["resourceRef"]["kind"] == "Node"))
    return path


def _gpu_node() -> dict[str, Any]:
    """The one type of node that the provider sells."""
    where = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    spot = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}
    room = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "20Gi", "pods": "110", GPU: str(GPUS_PER_NODE)}
    offer = {"Price": 1.0, "Available": True, "Requirements": [spot, where]}
    return {
        "name": "gpu-2",
        "offerings": [offer],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": room,
    }


def _install(server: ApiServer, folder: Path) -> None:
    crds = (folder / "crds.yaml").read_text()
    node_class = {
        "apiVersion": "karpenter.kwok.sh/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": {"name": "default"},
        "spec": {},
    }
    for command, document in (
        (("apply", "--server-side", "-f", "-"), crds),
        (("wait", "--for=condition=Established", "--timeout=30s", "-f", "-"), crds),
        (("create", "-f", "-"), yaml.safe_dump(node_class)),
    ):
        done = server.kubectl(*command, document=document)
        assert done.returncode == 0, done.stderr


class NodePool:
    """A NodePool of one test: at most ``nodes`` nodes, each with ``GPUS_PER_NODE`` GPUs, that only its template
    selects."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def add(self, name: str, nodes: int, expire: str = "Never", weight: int = 1, consolidate: str = "5s") -> None:
        """``expire``: lifetime of a node; ``consolidate``: how long a node is underused before it goes."""
        full = f"{self.cluster.namespace}-{name}"
        template = {
            "metadata": {"labels": {"pool": self.cluster.namespace, "part": name}},
            "spec": {
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                "expireAfter": expire,
            },
        }
        disruption = {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": consolidate,
            "budgets": [{"nodes": "100%"}],
        }
        spec = {
            "template": template,
            "disruption": disruption,
            "weight": weight,
            "limits": {GPU: str(nodes * GPUS_PER_NODE)},
        }
        self.cluster.call(
            "POST",
            "/apis/karpenter.sh/v1/nodepools",
            {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": full}, "spec": spec},
        )

    def nodes(self, part: str = "") -> dict[str, dict[str, Any]]:
        """Its nodes by name, of one part or of all."""
        selector = f"pool={self.cluster.namespace}" + (f",part={part}" if part else "")
        found = self.cluster.call(
            "GET", f"/api/v1/nodes?labelSelector={selector.replace('=', '%3D').replace(',', '%2C')}"
        )
        return {n["metadata"]["name"]: n for n in found["items"]}

    def workers(self, node: str) -> set[str]:
        """Pods (names) bound to a node."""
        return {name for name, p in self.cluster.pods().items() if p["spec"].get("nodeName") == node}

    def taint(self, node: str, key: str) -> None:
        """A cloud's notice on a node, as its termination handler writes it."""
        taints = self.nodes()[node]["spec"].get("taints") or []
        self.cluster.merge(
            f"/api/v1/nodes/{node}", {"spec": {"taints": [*taints, {"key": key, "effect": "NoSchedule"}]}}
        )

    def reclaim(self, node: str) -> None:
        """The cloud takes a node's machine; Karpenter ends the node."""
        claims = self.cluster.call("GET", "/apis/karpenter.sh/v1/nodeclaims")["items"]
        name = next(c["metadata"]["name"] for c in claims if c["status"].get("nodeName") == node)
        self.cluster.call("DELETE", f"/apis/karpenter.sh/v1/nodeclaims/{name}")

    def close(self) -> None:
        """Its pools and nodes go."""
        for name in [
            p["metadata"]["name"] for p in self.cluster.call("GET", "/apis/karpenter.sh/v1/nodepools")["items"]
        ]:
            self.cluster.call("DELETE", f"/apis/karpenter.sh/v1/nodepools/{name}")

    def template(self, **spec: Any) -> dict[str, Any]:
        container = {"name": "trainer", "image": "trainer:1", "command": ["train"], "resources": {"limits": {GPU: "1"}}}
        return {"spec": {"nodeSelector": {"pool": self.cluster.namespace}, "containers": [container], **spec}}
