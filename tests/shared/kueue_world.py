"""A namespace with queues of Kueue, and what jobs hold of their quota."""

from __future__ import annotations

import contextlib
import urllib.error
from typing import Any

from control_plane import ApiServer
from elastrain.api import names
from elastrain.api.keys import JobKeys
from kueue_server import API, GPU
from raw_cluster import Cluster

VERSION = "kueue.x-k8s.io/v1beta2"
CLASSES = {"normal": 100, "high": 1000}
QUEUE_LABEL, CLASS_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
NOW = "2030-01-01T00:00:00Z"
NOTE = "kueue.x-k8s.io/workload"
REQUESTS = {"requests": {"cpu": "1"}, "limits": {GPU: "1"}}


def template(**meta: Any) -> dict[str, Any]:
    """Of a worker with one GPU."""
    container = {"name": "trainer", "image": "trainer:1", "command": ["python", "train.py"], "resources": REQUESTS}
    return {"metadata": meta, "spec": {"containers": [container], "terminationGracePeriodSeconds": 2}}


class World(Cluster):
    """One namespace. Names of cluster-wide objects contain its own."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        super().__init__(server.kubeconfig, namespace)
        self.server = server
        self._made: list[str] = []
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        self.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        self.make_classes()

    def close(self) -> None:
        """Delete what this world made."""
        for job in self.call("GET", self.job_path())["items"]:
            self.drop(self.job_path(job["metadata"]["name"]))
        for pod in self.pods():
            self.drop(f"{self.pods_path}/{pod}")
        for path in reversed(self._made):
            self.drop(path)

    def drop(self, path: str) -> None:
        with contextlib.suppress(urllib.error.HTTPError):
            self.call("DELETE", path)

    def make_classes(self) -> None:
        """The priority classes, which all worlds share, where they are missing."""
        for name, value in CLASSES.items():
            with contextlib.suppress(urllib.error.HTTPError):
                self.make("workloadpriorityclasses", "WorkloadPriorityClass", name, value=value, keep=True)

    # ---- Kueue -------------------------------------------------------------------------------------------------------
    def make(self, plural: str, kind: str, name: str, *, keep: bool = False, **fields: Any) -> None:
        """A cluster-wide object of Kueue."""
        body = {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, **fields}
        self.call("POST", f"{API}/{plural}", body)
        if not keep:
            self._made.append(f"{API}/{plural}/{name}")

    def flavor(self, name: str, labels: dict[str, str] | None = None, **spec: Any) -> str:
        """A ResourceFlavor; returns its name."""
        full = f"{name}-{self.namespace}"
        self.make("resourceflavors", "ResourceFlavor", full, spec={"nodeLabels": labels or {}, **spec})
        return full

    def queue(self, name: str, flavors: dict[str, int], **spec: Any) -> str:
        """A ClusterQueue of GPUs, and the LocalQueue ``name`` for it. Returns the name of the ClusterQueue."""
        full = f"{name}-{self.namespace}"
        quotas = [
            {"name": flavor, "resources": [{"name": GPU, "nominalQuota": gpus}, {"name": "cpu", "nominalQuota": 9999}]}
            for flavor, gpus in flavors.items()
        ]
        made = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [GPU, "cpu"], "flavors": quotas}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
            **spec,
        }
        self.make("clusterqueues", "ClusterQueue", full, spec=made)
        body = {"apiVersion": VERSION, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": full}}
        self.call("POST", f"{API}/namespaces/{self.namespace}/localqueues", body)
        return full

    def stop_policy(self, cluster_queue: str, policy: str) -> None:
        """None, Hold or HoldAndDrain."""
        self.merge(f"{API}/clusterqueues/{cluster_queue}", {"spec": {"stopPolicy": policy}})

    def check(self, name: str) -> str:
        """An AdmissionCheck that the test answers; returns its name."""
        full = f"{name}-{self.namespace}"
        self.make("admissionchecks", "AdmissionCheck", full, spec={"controllerName": "elastrain.dev/test"})
        active = {"type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": NOW}
        self.merge(f"{API}/admissionchecks/{full}/status", {"status": {"conditions": [active]}})
        return full

    def checked(self, job: JobKeys, check: str) -> str:
        """State of a check of the base."""
        states = (self.base(job).get("status") or {}).get("admissionChecks", [])
        return next((str(s["state"]) for s in states if s["name"] == check), "")

    def answer(self, job: JobKeys, check: str, state: str, **more: Any) -> None:
        """Answer a check of the base."""
        given = {"name": check, "state": state, "message": f"by the test: {state}", "lastTransitionTime": NOW, **more}
        path = f"{self.workload_path(self.base_name(job))}/status"
        self.merge(path, {"status": {"admissionChecks": [given]}})

    def plain(self, gpus: int, name: str = "lq", **spec: Any) -> str:
        """One flavor without constraints beyond a label, and one queue."""
        return self.queue(name, {self.flavor(name, {"pool": "a"}): gpus}, **spec)

    def submit(
        self, name: str, low: int, high: int, queue: str = "lq", priority: str = "normal", **spec: Any
    ) -> JobKeys:
        """A job with a queue."""
        labels = {QUEUE_LABEL: queue, **({CLASS_LABEL: priority} if priority else {})}
        notes = spec.pop("annotations", {})
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "labels": labels, "annotations": notes},
            "spec": {"minReplicas": low, "maxReplicas": high, "template": template(), **spec},
        }
        created = self.call("POST", self.job_path(), body)
        return JobKeys(self.namespace, name, created["metadata"]["uid"])

    def workloads(self, job: JobKeys | None = None) -> dict[str, dict[str, Any]]:
        """Workloads by name."""
        items = self.call("GET", f"{API}/namespaces/{self.namespace}/workloads")["items"]
        start = f"{job.job}-{job.uid[:8]}" if job else ""
        return {w["metadata"]["name"]: w for w in items if w["metadata"]["name"].startswith(start)}

    def workload_path(self, name: str) -> str:
        return f"{API}/namespaces/{self.namespace}/workloads/{name}"

    @staticmethod
    def base_name(job: JobKeys) -> str:
        return f"{job.job}-{job.uid[:8]}"

    def base(self, job: JobKeys) -> dict[str, Any]:
        return self.call("GET", self.workload_path(self.base_name(job)))

    def charged(self, job: JobKeys) -> dict[str, list[str]]:
        """Workload → the job's pods that hold resources for it."""
        found: dict[str, list[str]] = {}
        for name, pod in self.pods().items():
            live = pod["status"].get("phase") not in ("Succeeded", "Failed")
            if live and name.rpartition("-")[0] == job.job:
                found.setdefault(pod["metadata"]["annotations"].get(NOTE, ""), []).append(name)
        return found

    def training(self, job: JobKeys) -> int:
        """Workers that train, by the job's status."""
        return int(self.status(job.job).get("readyReplicas") or 0)

    def reserved(self) -> int:
        """Pods for which Workloads of this namespace hold quota."""
        return sum(sets(w) for w in self.workloads().values() if true(w, "QuotaReserved"))

    def holding(self) -> int:
        """Pods that hold resources."""
        return sum(p["status"].get("phase") not in ("Succeeded", "Failed") for p in self.pods().values())


def sets(workload: dict[str, Any]) -> int:
    """Pods of a Workload."""
    return sum(int(s["count"]) for s in workload["spec"]["podSets"])


def condition(workload: dict[str, Any], kind: str) -> dict[str, Any]:
    found = [c for c in (workload.get("status") or {}).get("conditions", []) if c["type"] == kind]
    return dict(found[0]) if found else {}


def true(workload: dict[str, Any], kind: str) -> bool:
    return condition(workload, kind).get("status") == "True"
