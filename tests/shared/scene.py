"""Data for a dashboard: five jobs in all states, on four nodes."""

# ruff: noqa: E501 - objects of the API server on one line
from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from elastrain.api import names
from raw_objects import RUNNING, Raw, event_body, job_body, node_body, pod_body

Ago = Callable[[float], str]
"""The time so many minutes before the moment of the scene."""


class Cluster(Protocol):
    def put(self, plural: str, body: Raw) -> None: ...


def fill(cluster: Cluster, moment: datetime) -> None:
    """Put all objects into the cluster, in their state at ``moment``."""

    def ago(minutes: float) -> str:
        return (moment - timedelta(minutes=minutes)).isoformat(timespec="seconds")

    for job in (_grows_and_shrinks(ago), _trains(ago), _has_failed(ago), _waits(ago), _has_succeeded(ago)):
        cluster.put(names.PLURAL, job)
    for n, name in enumerate(("gpu-a", "gpu-b", "gpu-c", "gpu-d")):
        cluster.put("nodes", node_body(name, gpus=8, ready=n < 3))
    for ordinal, node in ((0, "gpu-a"), (1, "gpu-b"), (3, "gpu-c")):
        cluster.put("pods", pod_body("llama", ordinal, node, gpus=4))
    for ordinal in range(3):
        cluster.put("pods", pod_body("digits", ordinal, "gpu-b"))
    for event in _told(ago):
        cluster.put("events", event)


def _condition(kind: str, status: bool, reason: str, message: str, since: str) -> Raw:
    return {"type": kind, "status": str(status), "reason": reason, "message": message, "lastTransitionTime": since}


def _seconds(training: float, rescaling: float, waiting: float, redone: float = 0.0) -> Raw:
    return {"training": training, "rescaling": rescaling, "waiting": waiting, "redone": redone}


def _grows_and_shrinks(ago: Ago) -> Raw:
    """The job with a long history, and with texts of other users."""
    conditions = [
        _condition("Running", True, "Training", "generation 3 trains", ago(40)),
        _condition("Grown", False, "NoRoom", "not grown: 0 nvidia.com/gpu idle, 1 needed for the next worker", ago(3)),
        _condition("CheckpointHealthy", True, "Saved", "step 41,000 at /checkpoints/<script>document.title='owned'</script>", ago(30)),
    ]  # fmt: skip
    last = {
        "from": 16, "to": 12, "reason": "Lost", "pauseSeconds": 0.92, "lostSteps": 0, "time": ago(2),
        "phases": {"detect": 0.021, "decide": 0.06, "connect": 0.31, "transfer": 0.0, "first_step": 0.53},
    }  # fmt: skip
    failure = {
        "time": ago(2), "worker": "llama-2", "rank": 9, "cause": "infrastructure", "reason": "RankKilled",
        "message": "rank 9 was killed by signal 9 (SIGKILL)", "logTail": "step 41774 loss 2.1391\nstep 41775 loss 2.1388",
    }  # fmt: skip
    status = {
        **RUNNING, "conditions": conditions, "lastRescale": last, "readyReplicas": 3, "desiredReplicas": 4, "step": 41800,
        "generation": {"number": 5, "size": 3, "reason": "Lost"}, "restarts": {"user": 0, "infrastructure": 1, "preemption": 0},
        "progress": {"of": 100000, "epoch": 3, "samplesPerSecond": 5120.5, "loss": 2.1345, "eta": ago(-192)},
        "acceleratorSeconds": _seconds(88300.0, 310.0, 2400.0, 120.0), "lastFailure": failure,
    }  # fmt: skip
    return job_body("llama", minReplicas=2, maxReplicas=8, status=status, created=ago(134))


def _trains(ago: Ago) -> Raw:
    progress = {**RUNNING["progress"], "eta": ago(-38)}
    seconds = _seconds(300.0, 1.0, 29.0)
    status = {**RUNNING, "readyReplicas": 3, "conditions": [], "progress": progress, "acceleratorSeconds": seconds}
    return job_body("digits", status=status, created=ago(6))


def _has_failed(ago: Ago) -> Raw:
    message = "exit code 1 in rank 0 (worker resnet-1): RuntimeError: CUDA out of memory"
    failed = _condition("Failed", True, "BackoffLimitExceeded", message, ago(8))
    status = {"phase": "Failed", "step": 900, "conditions": [failed], "completionTime": ago(8), "desiredReplicas": 4}
    return job_body("resnet", "vision", status=status, created=ago(25))


def _waits(ago: Ago) -> Raw:
    message = (
        "waits: 4 workers must start together (minReplicas), there is room for 1; "
        "1 nvidia.com/gpu idle, 2 needed for the next worker (nprocPerNode 2)"
    )
    waits = _condition("Grown", False, "NoRoom", message, ago(4))
    status = {"phase": "Pending", "desiredReplicas": 4, "conditions": [waits]}
    return job_body("vit-large", "vision", minReplicas=4, maxReplicas=16, status=status, created=ago(4))


def _has_succeeded(ago: Ago) -> Raw:
    status = {
        "phase": "Succeeded", "step": 5000, "progress": {"of": 5000, "loss": 0.0213}, "desiredReplicas": 0,
        "conditions": [_condition("Succeeded", True, "Finished", "all steps are done", ago(50))],
        "completionTime": ago(50), "acceleratorSeconds": _seconds(9310.0, 44.0, 400.0),
    }  # fmt: skip
    return job_body("bert-base", "vision", status=status, created=ago(98))


def _told(ago: Ago) -> list[Raw]:
    """Events of the first job, oldest first."""
    rescaled = "from {} to {} ranks ({}), pause {} s (connect {} ms, transfer {} ms, first step {} ms), 0 steps lost"
    lost = "llama-2: rank 9 was killed by signal 9 (SIGKILL) (infrastructure: RankKilled)\nstep 41775 loss 2.1388"
    return [
        event_body("llama", "TargetSet", "4 workers desired (min 2, max 8)", ago(41)),
        event_body("llama", "Rescaled", rescaled.format(8, 12, "Grow", 0.34, 210, 88, 250), ago(35)),
        event_body("llama", "Rescaled", rescaled.format(12, 8, "Drain", 0.21, 150, 0, 208), ago(20)),
        event_body("llama", "Rescaled", rescaled.format(8, 16, "Grow", 0.41, 260, 121, 287), ago(12)),
        event_body("llama", "WorkerLost", lost, ago(2), "Warning"),
    ]
