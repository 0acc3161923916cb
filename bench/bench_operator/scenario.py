"""One run: jobs are created at once, scaled, left alone, outlive a restart of their operator, and are deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench_harness.program import Failed
from bench_operator.cluster import NAMESPACE, ControlPlane
from bench_operator.members import RunningPods
from bench_operator.results import Cost, Idle, Rescale, Restart, Run
from bench_operator.systems import SYSTEMS, Slim, System
from elastrain.api import names

QUIET_SECONDS = 5.0
"""After the last pod, for the writes that still follow."""

CHANGED = 30
"""Specs that change while the operator is down."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    nodes: int
    workers: int
    idle: float
    """Seconds without changes; 0: no idle phase and no restart."""
    limit: float
    """Seconds that a phase may take."""
    secret: bool
    """Whether the workers use a Secret of their namespace."""
    profile: bool


def measure(name: str, jobs: int, settings: Settings, directory: Path, say: Say) -> Run:
    """Raises ``Failed`` if a phase does not end in time."""
    with ControlPlane(directory, settings.nodes) as plane:
        kind = SYSTEMS[name]
        secret = settings.secret
        system = kind(plane, secret, settings.profile) if issubclass(kind, Slim) else kind(plane, secret)
        try:
            system.start()
            pods = RunningPods(plane, system.etcd())
            try:
                return Scenario(system, pods, jobs, settings, say).run(name)
            finally:
                pods.close()
        finally:
            system.close()


class Scenario:
    def __init__(self, system: System, pods: RunningPods, jobs: int, settings: Settings, say: Say) -> None:
        self._system = system
        self._plane = system.plane
        self._pods = pods
        self._jobs = [f"job-{i}" for i in range(jobs)]
        self._settings = settings
        self._say = say

    def run(self, name: str) -> Run:
        workers = self._settings.workers
        create = self.cost("create", lambda: self._create(workers), len(self._jobs) * workers)
        rescale = idle = restart = None
        if isinstance(self._system, Slim):
            rescale = self._rescale(workers + 1)
            if self._settings.idle:
                idle = self._idle(self._system)
                restart = self._restart(self._system, workers + 2)
        delete = self.cost("delete", self._delete, 0)
        if isinstance(self._system, Slim):
            system = self._system
            system.until(
                lambda: not system.records(), self._settings.limit, "the records of all jobs are swept", every=1
            )
        return Run(
            system=name,
            jobs=len(self._jobs),
            workers=workers,
            create=create,
            delete=delete,
            player_cpu=round(self._pods.cpu, 2) if self._system.etcd() else None,
            rescale=rescale,
            idle=idle,
            restart=restart,
        )

    # ---- phases ----------------------------------------------------------------------------------------------------
    def _create(self, workers: int) -> None:
        self._pods.wanted = workers
        path = self._plane.directory / "jobs.json"
        items = [self._system.manifest(name, workers) for name in self._jobs]
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        self._plane.kubectl("create", "-f", str(path), limit=self._settings.limit)

    def _delete(self) -> None:
        self._pods.wanted = -1
        kind = self._system.kind
        self._plane.kubectl("delete", kind, "--all", f"-n={NAMESPACE}", "--wait=false", limit=self._settings.limit)

    def _rescale(self, workers: int) -> Rescale:
        changed: dict[str, float] = {}
        mark = self._system.audit.mark()
        patching = 0.0

        def change() -> None:
            nonlocal patching
            self._pods.wanted = workers
            api = self._plane.api()
            began = time.monotonic()
            for name in self._jobs:
                changed[name] = time.time()
                api.merge(_path(name), {"spec": {"replicas": workers}})
            patching = time.monotonic() - began

        cost = self.cost("rescale", change, len(self._jobs) * workers)
        created: dict[str, float] = {}
        for pod, at in self._system.audit.created_pods(mark).items():  # numbers go on where a worker was replaced
            job = pod.rpartition("-")[0]
            created[job] = max(at, created.get(job, at))
        if without := sorted(changed.keys() - created.keys()):
            raise Failed(f"{len(without)} of {len(changed)} jobs have got no further worker, the first {without[0]}")
        waits = sorted(created[name] - at for name, at in changed.items())
        return Rescale(
            cost=cost,
            patching_seconds=round(patching, 2),
            p50=round(waits[len(waits) // 2], 3),
            p99=round(waits[min(len(waits) - 1, len(waits) * 99 // 100)], 3),
        )

    def _idle(self, system: Slim) -> Idle:
        self._say(f"left alone for {self._settings.idle:g} s")
        mark, cpu, etcd = system.audit.mark(), system.cpu(), system.etcd_cpu()
        began = time.monotonic()
        time.sleep(self._settings.idle)
        return Idle(
            seconds=round(time.monotonic() - began, 1),
            cpu=round(system.cpu() - cpu, 2),
            etcd_cpu=round(system.etcd_cpu() - etcd, 2),
            requests=system.audit.requests(mark),
        )

    def _restart(self, system: Slim, workers: int) -> Restart:
        self._say("the operator restarts")
        system.stop_operator()
        some = self._jobs[:: max(1, len(self._jobs) // CHANGED)]
        api = self._plane.api()
        for name in some:
            api.merge(_path(name), {"spec": {"replicas": workers}})
        mark, jobs = system.audit.mark(), len(self._jobs)
        wall = time.time()
        system.start_operator()
        pods = {f"{name}-{workers - 1}" for name in some}

        def made() -> dict[str, float]:
            return system.audit.created_pods(mark)

        system.until(
            lambda: pods <= made().keys(), self._settings.limit, f"{len(pods)} pods for changed specs are created"
        )

        def planned_all() -> bool:  # kopf renews this answer every ten seconds
            state = system.health()
            return state.get("jobs") == jobs and state.get("unplanned") == 0

        system.until(planned_all, self._settings.limit, f"the new operator has planned all {jobs} jobs", every=1)
        created = made()
        return Restart(
            changed=len(pods),
            caught_up=round(max(created[p] for p in pods) - wall, 2),
            cpu=round(system.cpu(), 2),
            rss_mb=round(system.rss_mb(), 1),
            requests=system.audit.requests(mark),
        )

    # ---- measuring -------------------------------------------------------------------------------------------------
    def cost(self, what: str, act: Callable[[], None], pods: int) -> Cost:
        """The cost of ``act`` until so many pods run and every status is written."""
        self._say(f"{what}: until {pods} pods run")
        system, limit = self._system, self._settings.limit
        all_before, mark, cpu = self._plane.all_requests(), system.audit.mark(), system.cpu()
        used = system.by_process()
        began = time.monotonic()
        act()
        system.until(lambda: self._pods.count == pods, limit, f"{what}: {pods} pods run", every=0.05)
        seconds = max(self._pods.last_change - began, 0.0)  # 0: no pod has changed
        spent = {name: round(total - used.get(name, 0.0), 2) for name, total in system.by_process().items()}
        if pods:
            system.until(
                lambda: system.settled(len(self._jobs)), limit, f"{what}: the status of all jobs is Running", every=2
            )
        else:
            system.until(lambda: self._left() == 0, limit, f"{what}: no pod is left", every=1)
        time.sleep(QUIET_SECONDS)
        return Cost(
            seconds=round(seconds, 2),
            cpu=round(system.cpu() - cpu, 2),
            rss_mb=round(system.rss_mb(), 1),
            requests=system.audit.requests(mark),
            all_requests=self._plane.all_requests() - all_before,
            by_process=dict(sorted(spent.items(), key=lambda item: -item[1])),
        )

    def _left(self) -> int:
        return len(self._plane.api().get(f"/api/v1/namespaces/{NAMESPACE}/pods?limit=1")["items"])


def _path(name: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}/{name}"
