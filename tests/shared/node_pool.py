"""Nodes on a real API server that only one test's jobs select, and a scheduler for them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from raw_cluster import Cluster

GPU = "example.com/gpu"


class Pool:
    """The nodes of one test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free: dict[str, int] = {}
        self._lock = threading.Lock()

    def join(self, name: str, gpus: int) -> None:
        """A node becomes ready."""
        full, room = f"{name}.{self.cluster.namespace}", {GPU: str(gpus), "cpu": "8", "memory": "16Gi", "pods": "110"}
        meta = {"name": full, "labels": {"pool": self.cluster.namespace}}
        self.cluster.call("POST", "/api/v1/nodes", {"metadata": meta})
        # An admission plugin taints new nodes; in a complete cluster a controller removes the taint.
        self.cluster.merge(f"/api/v1/nodes/{full}", {"spec": {"taints": None}})
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp, "lastHeartbeatTime": stamp}
        status = {"allocatable": room, "capacity": room, "conditions": [ready]}
        self.cluster.merge(f"/api/v1/nodes/{full}/status", {"status": status})
        self.free[full] = gpus

    def bound(self, name: str, pod: dict[str, Any]) -> bool:
        """Whether the pod has a node; binds it if there is room on one that is not cordoned."""
        if pod["spec"].get("nodeName"):
            return True
        with self._lock:
            taken = [p["spec"].get("nodeName") for p in self.cluster.pods().values()]
            room = (n for n, gpus in sorted(self.free.items()) if taken.count(n) < gpus)
            node = next((n for n in room if not self._is_cordoned(n)), None)
            if node is None:
                return False
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            self.cluster.call("POST", f"{self.cluster.pods_path}/{name}/binding", binding)
            return True

    def _is_cordoned(self, node: str) -> bool:
        return bool(self.cluster.call("GET", f"/api/v1/nodes/{node}")["spec"].get("unschedulable"))

    def template(self, **spec: Any) -> dict[str, Any]:
        container = {"name": "trainer", "image": "trainer:1", "command": ["train"], "resources": {"limits": {GPU: "1"}}}
        return {"spec": {"nodeSelector": {"pool": self.cluster.namespace}, "containers": [container], **spec}}
