"""Runs what kwok only pretends to run: the agent of each pod, as a process of this machine."""

from __future__ import annotations

import http.client
import sys
from typing import Any

from elastrain.agent.logs import ENV_AGENT_LOG
from elastrain.api import names
from operator_harness.cluster import NAMESPACE, ControlPlane
from operator_harness.net import Refused
from outages_harness.analysis import Worker

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Kubelet:
    """A pod that kwok calls Running has its container's command started, with the pod's own environment; one that is
    gone has it ended by SIGTERM. Like a real kubelet it leaves everything as it is while the API server is away.

    Has no thread: :meth:`sync` is called once a second or so.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._api = plane.api()
        self._started: dict[str, tuple[str, str]] = {}
        """Job and name of the pods whose agents were started, by UID."""
        self._ended: set[str] = set()

    def sync(self) -> None:
        try:
            pods = {p["metadata"]["uid"]: p for p in self._api.get(PODS)["items"]}
        except (OSError, http.client.HTTPException, Refused):
            return
        for uid in self._started.keys() - pods.keys() - self._ended:
            self._ended.add(uid)
            if self._plane.processes.runs(uid):
                self._plane.processes.terminate(uid)
        for uid in pods.keys() - self._started.keys():
            if pods[uid]["status"].get("phase") == "Running":
                self._start(uid, pods[uid])

    def workers(self, job: str) -> dict[str, Worker]:
        """Of the pods that are there, by name."""
        return {
            name: Worker(uid, (self._plane.processes.tree(uid) or [None])[0])
            for uid, (owner, name) in self._started.items()
            if owner == job and uid not in self._ended
        }

    def running(self) -> int:
        """Agents that have not ended."""
        return sum(self._plane.processes.runs(uid) for uid in self._started)

    def _start(self, uid: str, pod: dict[str, Any]) -> None:
        metadata, [trainer] = pod["metadata"], pod["spec"]["containers"]
        told = {
            "metadata.name": metadata["name"],
            "spec.nodeName": pod["spec"]["nodeName"],
            "status.podIP": "127.0.0.1",  # kwok invents one
        }
        environment = {
            e["name"]: e["value"] if "value" in e else told[e["valueFrom"]["fieldRef"]["fieldPath"]]
            for e in trainer["env"]
        }
        last_words = self._plane.directory / f"{uid}.termination"
        environment |= {
            names.ENV_TERMINATION_LOG: str(last_words),
            ENV_AGENT_LOG: str(self._plane.directory / f"{uid}.agent.log"),
        }
        _, *arguments = trainer["command"]
        self._plane.processes.start(uid, [sys.executable, "-m", "elastrain", *arguments], environment)
        self._started[uid] = metadata["labels"][names.LABEL_JOB], metadata["name"]
