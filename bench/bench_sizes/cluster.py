"""One run on a control plane: jobs arrive, the operator sizes them, and they end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_harness.program import Failed
from bench_operator.cluster import NAMESPACE, ControlPlane
from bench_operator.net import Refused
from bench_operator.systems import Slim
from bench_sizes.members import PlayedJob, Players
from bench_sizes.simulated import GPU, Cluster, Delays, Outcome
from bench_sizes.task import Task
from elastrain.api import names
from elastrain.etcd import EtcdError

SAY_SECONDS = 15.0
"""Between two lines of progress."""
SHOWN = 10
"""Jobs in a message."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run has shown."""

    jobs: dict[str, Outcome]
    delays: Delays
    """Medians."""
    seconds: float
    cpu: dict[str, float]
    """Processor seconds of each process."""
    requests: int
    """Of the operator to the API server."""


class Sizing(Slim):
    """The operator, with sizes by measured speed; else as :class:`Slim`."""

    sharing = "efficient"

    def _flags(self) -> list[str]:
        return ["--capacity", f"--capacity-sharing={self.sharing}"]

    def job(self, task: Task) -> dict[str, Any]:
        container = {"name": "trainer", "image": "trainer:1", "command": ["train"], "resources": {"limits": {GPU: "1"}}}
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": task.name, "namespace": NAMESPACE},
            "spec": {
                "minReplicas": 1,
                "maxReplicas": task.most,
                "template": {"spec": {"containers": [container]}},
            },
        }


def run(
    tasks: Sequence[Task],
    cluster: Cluster,
    sharing: str,
    pause: float,
    startup: float,
    limit: float,
    directory: Path,
    say: Callable[[str], None],
) -> Ran:
    """``limit``: seconds. Raises ``Failed`` if jobs have not ended by then, or a process of the run ends."""
    with ControlPlane(directory, cluster.nodes, cluster.gpus, packs=True) as plane:
        system = Sizing(plane)
        system.sharing = sharing
        try:
            system.start()
            players = Players(plane, system.etcd(), cluster.nodes * cluster.gpus, pause, startup)
            try:
                return _play(tasks, system, players, limit, say)
            except (Refused, EtcdError, OSError) as error:
                raise Failed(f"{error}; logs: {plane.directory}") from None
            finally:
                players.close()
        finally:
            system.close()


def _play(tasks: Sequence[Task], system: Sizing, players: Players, limit: float, say: Callable[[str], None]) -> Ran:
    waiting = sorted(tasks, key=lambda t: t.arrives)
    used, mark = system.by_process(), system.audit.mark()
    began = time.monotonic()
    said = began
    while waiting or any(j.ended is None for j in players.jobs.values()):
        now = time.monotonic()
        system.check()
        while waiting and waiting[0].arrives <= now - began:
            task = waiting.pop(0)
            players.create(task, system.job(task))
        if now - said >= SAY_SECONDS:
            said = now
            say(_state(now - began, players.jobs.values(), len(waiting)))
        if now - began > limit:
            left = [j.name for j in players.jobs.values() if j.ended is None]
            shown = ", ".join(left[:SHOWN])
            raise Failed(
                f"not within {limit:g} s: {len(left)} jobs have not ended ({shown}); logs: {system.plane.directory}"
            )
        nearest = began + waiting[0].arrives if waiting else now + 1.0
        players.play(min(nearest, now + 1.0))
    seconds = time.monotonic() - began
    spent = {name: round(total - used.get(name, 0.0), 1) for name, total in system.by_process().items()}
    jobs = list(players.jobs.values())
    return Ran(
        jobs={j.name: _outcome(j, began) for j in jobs},
        delays=_delays(jobs, players.decisions),
        seconds=seconds,
        cpu=spent,
        requests=sum(system.audit.requests(mark).values()),
    )


def _state(seconds: float, jobs: Any, waiting: int) -> str:
    ended = sum(j.ended is not None for j in jobs)
    gpus = sum(len(j.running) for j in jobs)
    trains = sum(j.ended is None and bool(j.members) for j in jobs)
    return f"{seconds:.0f} s: {ended} jobs ended, {trains} train, {gpus} GPUs in use, {waiting} to arrive"


def _outcome(job: PlayedJob, began: float) -> Outcome:
    assert job.began is not None and job.ended is not None
    return Outcome(job.began - began, job.ended - began, job.training.rescales, job.held)


def _delays(jobs: Sequence[PlayedJob], decisions: Sequence[float]) -> Delays:
    """Admissions of jobs that found room; the start and growths of a job are starts."""
    admissions = [j.targeted - j.created for j in jobs if j.targeted is not None and j.room]
    starts = [s for j in jobs for s in j.starts]
    return Delays(*(statistics.median(seconds) if seconds else 0.0 for seconds in (admissions, decisions, starts)))
