"""A job as its user sees it: through ``kubectl``, the logs of its pods and its audit log."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.commands import SHARED, eventually, kubectl, kubectl_json, run

RESOURCE = "elastictrainingjobs"
START = 120.0
"""Seconds for a worker to be scheduled, to import torch on a busy machine and to train."""
RESCALE = 90.0
LONGEST = 900.0
"""Seconds that a job which makes steps may take to its end on the slowest machine."""


@dataclass
class Job:
    """One ElasticTrainingJob in a namespace of its own, whose volume is a folder on this machine."""

    namespace: str
    name: str

    @property
    def volume(self) -> Path:
        """The job's shared volume, as this machine sees it."""
        return SHARED / self.namespace

    # ---- what a user does -------------------------------------------------------------------------------------------
    def apply(self, manifest: dict[str, Any]) -> None:
        kubectl("apply", "-n", self.namespace, "-f", "-", text=json.dumps(manifest))

    def scale(self, replicas: int) -> None:
        kubectl("scale", "-n", self.namespace, f"etj/{self.name}", f"--replicas={replicas}")

    def patch(self, **spec: Any) -> None:
        change = json.dumps({"spec": spec})
        kubectl("patch", "-n", self.namespace, f"etj/{self.name}", "--type=merge", "-p", change)

    # ---- what a user reads ------------------------------------------------------------------------------------------
    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = kubectl_json("get", "-n", self.namespace, RESOURCE, self.name).get("status", {})
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """The condition of that type; an empty one if there is none."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def holds(self, kind: str, status: str = "True") -> bool:
        return bool(self.condition(kind).get("status") == status)

    @property
    def step(self) -> int:
        return int(self.status.get("step") or 0)

    @property
    def events(self) -> list[tuple[str, str]]:
        """Reason and message of the job's events, oldest first."""
        selector = f"involvedObject.kind=ElasticTrainingJob,involvedObject.name={self.name}"
        items = kubectl_json("get", "events", "-n", self.namespace, f"--field-selector={selector}")["items"]
        items.sort(key=lambda e: e.get("lastTimestamp") or e.get("eventTime") or "")
        return [(e["reason"], e["message"]) for e in items]

    @property
    def reasons(self) -> list[str]:
        """Of its events."""
        return [reason for reason, _ in self.events]

    @property
    def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = kubectl_json(
            "get", "pods", "-n", self.namespace, "-l", f"elastrain.dev/job={self.name}"
        )["items"]
        return items

    @property
    def left_behind(self) -> list[str]:
        """What there is with the job's label in its namespace, of any kind that the operator may write."""
        kinds = "pods,services,secrets,configmaps,serviceaccounts,roles,rolebindings,poddisruptionbudgets"
        return kubectl("get", kinds, "-n", self.namespace, "-l", f"elastrain.dev/job={self.name}", "-o", "name").split()

    @property
    def workers(self) -> dict[str, str]:
        """UID by name of the pods that run and are not being deleted."""
        return {
            p["metadata"]["name"]: p["metadata"]["uid"]
            for p in self.pods
            if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
        }

    @property
    def nodes(self) -> dict[str, str]:
        """Node by name of the pods that are bound to one."""
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in self.pods if "nodeName" in p["spec"]}

    @property
    def audited_bytes(self) -> int:
        """What its ranks have written to the audit log so far: seen on the volume, without Kubernetes."""
        return sum(file.stat().st_size for file in (self.volume / "audit").rglob("*") if file.is_file())

    def logs(self, pod: str) -> str:
        return kubectl("logs", "-n", self.namespace, pod, "-c", "trainer")

    # ---- waits ------------------------------------------------------------------------------------------------------
    def wait_size(self, workers: int, timeout: float = START) -> dict[str, str]:
        """Until a generation of so many workers trains; returns them, UID by name."""

        def trains() -> bool:
            status = self.status
            return (
                status.get("readyReplicas") == workers
                and status.get("generation", {}).get("size") == workers
                and len(self.workers) == workers
            )

        eventually(f"{workers} workers of {self.name} train", trains, timeout, self.summary)
        return self.workers

    def wait_rescale(self, to: int, timeout: float = 30) -> dict[str, Any]:
        """Until the leader's report of the rescale to so many ranks is in the status; returns it.

        Members report the generation that they adopt, the leader the rescale that it has measured: two records.
        """

        def reported() -> dict[str, Any]:
            last: dict[str, Any] = self.status.get("lastRescale", {})
            return last if last.get("to") == to else {}

        return eventually(f"{self.name} reports a rescale to {to}", reported, timeout, self.summary)

    def wait_steps(self, more: int, timeout: float = 60) -> int:
        """Until so many more steps are committed than now; returns the step."""
        goal = self.step + more
        eventually(f"{self.name} has committed step {goal}", lambda: self.step >= goal, timeout, self.summary)
        return self.step

    def wait_condition(self, kind: str, status: str = "True", timeout: float = 60) -> dict[str, Any]:
        eventually(f"condition {kind}={status}", lambda: self.holds(kind, status), timeout, self.summary)
        return self.condition(kind)

    def wait_success(self, stalled: float = 60) -> None:
        """Until it has succeeded, for as long as it moves: on a busy machine a run takes longer, and is no worse.

        Raises ``AssertionError`` after ``stalled`` seconds without a new step or generation, and as soon as it failed.
        """
        moved, last = time.monotonic(), ()

        def over() -> bool:
            nonlocal moved, last
            status = self.status
            at = (status.get("step"), status.get("generation"))
            if at != last:
                moved, last = time.monotonic(), at
            return self.holds("Succeeded") or self.holds("Failed") or time.monotonic() - moved > stalled

        eventually(f"{self.name} ends, or makes no step for {stalled:g} s", over, LONGEST, self.summary)
        assert self.holds("Succeeded"), (
            f"{self.name} did not succeed, or made no step for {stalled:g} s:\n{self.summary()}"
        )

    def summary(self) -> str:
        """For people, the most telling first: pods with their last words, the latest events, conditions, and the rest
        of the status."""
        status, pods = self.status, self.pods
        conditions = status.pop("conditions", [])
        parts = {
            "pods": [_in_a_line(p) for p in pods],
            "last words": [f"{p['metadata']['name']}: {line}" for p in pods for line in self._last_words(p)],
            "latest events": [f"{reason}: {message}" for reason, message in self.events[-12:]],
            "conditions": [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in conditions],
            "status": [f"{field}: {json.dumps(value)}" for field, value in status.items()],
        }
        return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines) for title, lines in parts.items())

    def _last_words(self, pod: dict[str, Any]) -> list[str]:
        """Of its container, or why there are none: a stopped node does not answer."""
        where = ("-n", self.namespace, pod["metadata"]["name"], "-c", "trainer")
        done = run("kubectl", "logs", *where, "--tail=5", "--request-timeout=10s", check=False)
        return [line[:300] for line in (done.stdout or done.stderr).splitlines()]


def _in_a_line(pod: dict[str, Any]) -> str:
    """Phase, node, and the state of each container that does not simply run."""
    status = pod["status"]
    containers = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
    states = [
        f"{c['name']} {state} {about.get('reason', '')} {about.get('message', '')}".rstrip()
        for c in containers
        for state, about in c["state"].items()
        if state != "running"
    ]
    unmet = [f"{c['type']}: {c['message']}" for c in status.get("conditions", []) if "message" in c]
    leaving = ["is being deleted"] if "deletionTimestamp" in pod["metadata"] else []
    place = (
        f"{pod['metadata']['name']} {status.get('phase')} on {pod['spec'].get('nodeName')} {status.get('reason', '')}"
    )
    return "; ".join([place.rstrip(), *leaving, *states, *unmet])


def make_folders(namespace: str, place: str = "") -> None:
    """What :mod:`harness.example` mounts of the namespace's volume, or of the folder ``place`` of it, for any user to
    write: kubelet would make them root's."""
    for name in ("checkpoints", "audit"):
        folder = SHARED / namespace / place / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)


class Audit:
    """The verdict of ``elastrain audit`` on the samples that a job consumed."""

    @staticmethod
    def of(job: Job, place: str = "") -> dict[str, Any]:
        """What the command says now of the log in the folder ``place`` of the volume.

        Raises :class:`CommandFailed` if a sample was lost or repeated.
        """
        log = job.volume / place / "audit"
        verdict: dict[str, Any] = json.loads(run("elastrain", "audit", "--json", str(log)).stdout)
        return verdict

    @staticmethod
    def at_the_end_of(job: Job) -> dict[str, Any]:
        """The same, after the job was deleted and all its pods have ended; which leaves nothing behind."""
        kubectl("delete", "-n", job.namespace, f"etj/{job.name}", "--wait", "--timeout=60s")
        eventually("all pods are gone", lambda: not job.pods, 60)
        eventually("nothing of the job is left", lambda: not job.left_behind, 60, lambda: job.left_behind)
        return Audit.of(job)
