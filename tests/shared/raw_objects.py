"""Objects in the form of the Kubernetes API, for tests of readers."""

# ruff: noqa: E501 - objects of the API server on one line
from __future__ import annotations

from typing import Any

from elastrain.api import names

Raw = dict[str, Any]


def job_body(
    name: str = "digits",
    namespace: str = "research",
    *,
    status: Raw | None = None,
    created: str = "2030-01-01T00:00:00Z",
    **spec: Any,
) -> Raw:
    container = {
        "name": "trainer",
        "image": "train:1",
        "command": ["python", "train.py"],
        "env": [{"name": "S", "value": "hidden"}],
    }
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "creationTimestamp": created,
        "generation": 1,
    }
    return {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata,
        "spec": {"maxReplicas": 4, "template": {"spec": {"containers": [container]}}, **spec},
        "status": {"observedGeneration": 1, **(status or {})},
    }  # fmt: skip


def pod_body(
    job: str, ordinal: int, node: str = "node-a", gpus: int = 1, phase: str = "Running", namespace: str = "research"
) -> Raw:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "metadata": {
            "name": f"{job}-{ordinal}", "namespace": namespace,
            "labels": {names.LABEL_JOB: job, names.LABEL_ORDINAL: str(ordinal)},
        },
        "spec": {"nodeName": node, "containers": [{"name": "trainer", "resources": {"limits": limits}}]},
        "status": {"phase": phase, "startTime": "2030-01-01T00:00:00Z"},
    }  # fmt: skip


def node_body(name: str, gpus: int = 4, ready: bool = True) -> Raw:
    return {
        "metadata": {"name": name}, "spec": {},
        "status": {
            "allocatable": {"cpu": "8", **({"nvidia.com/gpu": str(gpus)} if gpus else {})},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }  # fmt: skip


def event_body(
    job: str, reason: str, message: str, time: str, kind: str = "Normal", namespace: str = "research"
) -> Raw:
    return {
        "metadata": {"name": f"{job}.{reason}.{time}", "namespace": namespace},
        "involvedObject": {"kind": names.KIND, "namespace": namespace, "name": job},
        "type": kind, "reason": reason, "message": message, "lastTimestamp": time, "count": 1,
    }  # fmt: skip


RUNNING: Raw = {
    "phase": "Running", "desiredReplicas": 3, "readyReplicas": 2, "step": 120,
    "generation": {"number": 2, "size": 2, "reason": "Grow"},
    "progress": {"of": 1000, "epoch": 1, "samplesPerSecond": 640.0, "loss": 0.4321, "eta": "2030-01-01T01:00:00+00:00"},
    "lastRescale": {
        "from": 1, "to": 2, "reason": "Grow", "pauseSeconds": 0.31, "lostSteps": 0, "time": "2030-01-01T00:10:00+00:00",
        "phases": {"connect": 0.02, "transfer": 0.05, "first_step": 0.26},
    },
    "acceleratorSeconds": {"training": 900.0, "rescaling": 40.0, "waiting": 60.0, "redone": 0.0},
    "conditions": [
        {"type": "Grown", "status": "False", "reason": "NoRoom", "message": "not grown: 0 nvidia.com/gpu idle, 1 needed for the next worker", "lastTransitionTime": "2030-01-01T00:00:00Z"},
    ],
}  # fmt: skip
