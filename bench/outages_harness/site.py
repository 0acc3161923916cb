"""A control plane whose parties can be taken away, and jobs on it that really train."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastrain.api import names
from operator_harness.cluster import NAMESPACE, START_SECONDS, ControlPlane, Failed, until
from operator_harness.systems import Elastrain
from outages_harness.analysis import Seen
from outages_harness.kubelet import Kubelet

OPERATOR, ETCD, API_SERVER = PARTIES = ("operator", "etcd", "apiserver")
"""In the order in which they are taken away; they come back in the opposite one."""
CASES = {**{party: (party,) for party in PARTIES}, "all": PARTIES}
START_SIZE, MOST = 2, 8
"""Workers of each job at first, and at most: each outage adds one."""
CONVERGE_SECONDS = 300.0


class Site:
    """Jobs of two workers on a started control plane; :meth:`close` ends them and waits for their last line."""

    def __init__(self, plane: ControlPlane, system: Elastrain, jobs: int) -> None:
        self._plane, self._system = plane, system
        self._kubelet = Kubelet(plane)
        self.size = START_SIZE
        self.jobs = [f"job-{n}" for n in range(jobs)]
        self.pods: dict[str, dict[str, set[str]]] = {job: {} for job in self.jobs}
        """UIDs of all pods that each worker's name had, by job."""

    def start(self) -> None:
        """Raises :class:`Failed` if a job does not train."""
        api = self._plane.api()
        for job in self.jobs:
            api.call("POST", _path(), self._manifest(job))
        for job in self.jobs:
            self._until(lambda job=job: self._trains(job), CONVERGE_SECONDS, f"{job} trains with {self.size} workers")

    def outage(self, case: str, seconds: float) -> list[Seen]:
        """Take the parties of ``case`` away for so long; every job is asked to grow meanwhile, if anybody can hear it,
        else just before."""
        parties = CASES[case]
        before = {job: self._kubelet.workers(job) for job in self.jobs}
        self._take_away(parties)
        steps: dict[str, list[tuple[float, int]]] = {job: [] for job in self.jobs}
        began = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            for job in self.jobs:
                steps[job].append((at, self.committed(job)))
            self._kubelet.sync()
            time.sleep(1.0)
        self._bring_back(parties)
        back = time.monotonic()
        seen = []
        for job in self.jobs:
            converged = self._converged(job, back)
            after = self._kubelet.workers(job)
            for name, worker in (*before[job].items(), *after.items()):
                self.pods[job].setdefault(name, set()).add(worker.uid)
            seen.append(Seen(job, before[job], after, steps[job], converged))
        return seen

    def close(self) -> None:
        """Delete the jobs. Raises :class:`Failed` if a worker does not end."""
        api = self._plane.api()
        for job in self.jobs:
            api.call("DELETE", _path(job))
        self._until(lambda: not self._kubelet.running(), START_SECONDS, "all workers have ended")

    def audit_directory(self, job: str) -> Path:
        return self._plane.directory / "audit" / job

    def committed(self, job: str) -> int:
        """The newest step in the audit log."""
        return max((_last_step(file) for file in self.audit_directory(job).glob("*.jsonl")), default=0)

    # ---- parties ---------------------------------------------------------------------------------------------------
    def _take_away(self, parties: tuple[str, ...]) -> None:
        if OPERATOR in parties:
            self._system.stop_operator()
        if ETCD in parties:
            self._system.stop_etcd()
        self.size += 1
        api = self._plane.api()
        for job in self.jobs:
            api.merge(_path(job), {"spec": {"replicas": self.size}})
        if API_SERVER in parties:
            self._plane.stop_apiserver()

    def _bring_back(self, parties: tuple[str, ...]) -> None:
        if API_SERVER in parties:
            self._plane.start_apiserver()
        if ETCD in parties:
            self._system.start_etcd()
        if OPERATOR in parties:
            self._system.start_operator()

    # ---- jobs ------------------------------------------------------------------------------------------------------
    def _manifest(self, name: str) -> dict[str, Any]:
        container = {
            "name": "trainer",
            "image": "trainer:1",
            "command": [sys.executable, str(Path(__file__).with_name("train.py"))],
            "env": [{"name": names.ENV_AUDIT_DIR, "value": str(self.audit_directory(name))}],
        }
        spec = {"minReplicas": 1, "maxReplicas": MOST, "replicas": self.size}
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {**spec, "template": {"spec": {"containers": [container]}}},
        }

    def _trains(self, job: str) -> bool:
        """With the size that was asked for, by its status, and without a complaint about etcd."""
        status = self._plane.api().get(_path(job)).get("status") or {}
        conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
        sizes = status.get("readyReplicas"), (status.get("generation") or {}).get("size")
        return sizes == (self.size, self.size) and conditions.get("CoordinationAvailable") != "False"

    def _converged(self, job: str, back: float) -> float | None:
        """Seconds since ``back`` until the job has the size asked for and commits steps; None: not in time."""
        try:
            self._until(lambda: self._trains(job), CONVERGE_SECONDS, f"{job} trains with {self.size} workers")
            at = self.committed(job)
            self._until(lambda: self.committed(job) > at + 1, START_SECONDS, f"{job} commits steps")
        except Failed:
            return None
        return time.monotonic() - back

    def _until(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        def holds() -> object:
            self._kubelet.sync()
            return condition()

        until(holds, seconds, what, every=0.5)


def _path(job: str = "") -> str:
    path = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
    return f"{path}/{job}" if job else path


def _last_step(file: Path) -> int:
    """Of the last complete line; 0 if there is none."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - 16_384))
        lines = opened.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1]).get("step", 0)) if len(lines) > 1 else 0
