"""The jobs that train while somebody is away, and what can be seen of them without asking anybody."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import release, workspace
from harness.commands import kubectl, run
from harness.example import digits
from harness.jobs import Job
from outages_harness.analysis import Worker

NAMESPACE = "bench-outages"
SIZE, WANTED = 2, 3
"""Workers of each job before an outage, and asked for while somebody is away."""
STEP_SECONDS = 0.5
GPUS = 6
"""Of each node, simulated: enough for four jobs that have grown."""
MOST_JOBS = 2 * GPUS // WANTED


class Training(Job):
    """One of several jobs of the namespace, with a folder for its audit log."""

    @property
    def volume(self) -> Path:
        return super().volume / self.name

    def pods_by_name(self) -> dict[str, Worker]:
        """Its pods that run."""
        return {
            p["metadata"]["name"]: Worker(
                p["metadata"]["uid"], sum(c["restartCount"] for c in p["status"].get("containerStatuses", []))
            )
            for p in self.pods
            if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
        }

    def committed(self) -> int:
        """The newest step in the audit log, read from the volume."""
        return max((_last_step(file) for file in (self.volume / "audit").glob("*.jsonl")), default=0)

    def audit(self) -> dict[str, Any]:
        """What ``elastrain audit`` says, a broken promise included."""
        verdict: dict[str, Any] = json.loads(
            run("elastrain", "audit", "--json", str(self.volume / "audit"), check=False).stdout
        )
        return verdict


@contextlib.contextmanager
def training(count: int) -> Iterator[list[Training]]:
    """``count`` jobs of two workers that train; removed at the end."""
    release.GPUS_PER_NODE = GPUS
    for node in release.WORKER_NODES:
        release.advertise_gpus(node)
    workspace.remove(NAMESPACE)
    jobs = [Training(NAMESPACE, f"job-{n}") for n in range(count)]
    workspace.make(NAMESPACE, [f"{j.name}/{folder}" for j in jobs for folder in ("checkpoints", "audit")])
    try:
        for job in jobs:
            job.apply(_manifest(job.name))
        for job in jobs:
            job.wait_size(SIZE, 300)
        yield jobs
    finally:
        workspace.remove(NAMESPACE)


def _manifest(name: str) -> dict[str, Any]:
    manifest = digits(name, step_seconds=STEP_SECONDS, replicas=SIZE, minReplicas=1, maxReplicas=WANTED)
    for mount in manifest["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]:
        mount["subPath"] = f"{name}/{mount['subPath']}"
    return manifest


def end(jobs: Sequence[Training]) -> None:
    """Delete them and wait until their workers have written their last line."""
    kubectl("delete", "-n", NAMESPACE, "etj", "--all", "--wait", "--timeout=120s", timeout=150)
    kubectl("wait", "-n", NAMESPACE, "pods", "--all", "--for=delete", "--timeout=120s", timeout=150)


class Watcher(threading.Thread):
    """Notes once a second how far each job is, from the volume: no party is asked."""

    def __init__(self, jobs: Sequence[Training]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.steps: dict[str, list[tuple[float, int]]] = {job.name: [] for job in jobs}
        self._jobs = jobs
        self._ended = threading.Event()

    def run(self) -> None:
        start = time.monotonic()
        while not self._ended.is_set():
            for job in self._jobs:
                self.steps[job.name].append((time.monotonic() - start, job.committed()))
            self._ended.wait(1.0)

    def end(self) -> None:
        self._ended.set()
        self.join(timeout=10)


def _last_step(file: Path) -> int:
    """Of the last complete line; 0 if there is none."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 16_384))
        lines = opened.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1]).get("step", 0)) if len(lines) > 1 else 0
