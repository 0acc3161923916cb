"""A cluster whose API server admits pods one by one: quotas and policies that come and go, beside nodes that are full.

Each step is an allocation, and what each job's loop does about it: dry runs, creations, refusals and their delays, as
``job/steps.py`` and ``job/executor.py`` have them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.promise import Promises
from elastrain_operator.allocation.snapshot import (
    Job,
    Node,
    Obstacle,
    PodCharge,
    Policy,
    QuotaRoom,
    Share,
    Snapshot,
    Worker,
    WorkerShape,
)
from elastrain_operator.cluster.quotas import Quota, bounded
from elastrain_operator.policy.losses.pacing import REFUSAL_DELAYS

START = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
CHARGE = PodCharge((("pods", 1), (f"requests.{GPU}", 1)))


@dataclass
class Played:
    """A job, its pods, and what its loop remembers."""

    spec: Job
    pods: dict[str, str] = field(default_factory=dict)
    """Name → node; empty: not bound."""
    trains: bool = False
    admitted: bool = False
    refusal: str = ""
    refused_at: datetime = START
    attempts: int = 0
    births: int = 0
    had_room: bool = False
    """It was granted its minimum, and has not trained since."""

    @property
    def bound(self) -> int:
        return sum(bool(node) for node in self.pods.values())


@dataclass(frozen=True)
class Failure:
    """A minimum that was granted and released again without having trained."""

    at: datetime
    facts: tuple[object, ...]
    number: int
    """In a row."""


class Admitting:
    """Namespaces ``a`` (bounded) and ``free``; one node of ``devices``."""

    def __init__(self, devices: int, *, readable: bool, lag: int = 0) -> None:
        """``readable``: the operator may read quotas; ``lag``: seconds after which the quota controller sees that a pod
        is gone."""
        self.now, self.readable, self.lag = START, readable, lag
        self.nodes = (Node("n", {GPU: devices, "pods": 1000}),)
        self.devices = devices
        self.jobs: dict[str, Played] = {}
        self.shares: dict[str, Share] = {}
        self.promises, self.policy = Promises(), Policy(hysteresis=0.0)
        self.hard: int | None = None
        self.foreign = 0
        """Pods of others in the namespace ``a``."""
        self.most_of_a_job: int | None = None
        """A policy that counts a job's pods, which no dry run of one pod shows."""
        self.refuses_all = False
        self.gone: list[datetime] = []
        """When pods of the namespace ``a`` went that its quota still counts."""
        self.failures: dict[str, Failure] = {}
        self.lost: dict[str, int] = {}
        """Workers that others lost, by the job for which they left."""

    def arrive(self, name: str, least: int, most: int, namespace: str, **fields: object) -> None:
        spec = Job(name, namespace, name, least, most, ONE, created=float(len(self.jobs)), generation=1, **fields)  # type: ignore[arg-type]
        self.jobs[name] = Played(spec)

    def change_spec(self, name: str) -> None:
        job = self.jobs[name]
        job.spec = replace(job.spec, generation=(job.spec.generation or 0) + 1)

    def facts(self, name: str) -> tuple[object, ...]:
        """What a refusal of the job's pods may name."""
        return (self.jobs[name].spec.generation, self.hard, self.foreign, self.most_of_a_job, self.refuses_all)

    # ---- the API server ----------------------------------------------------------------------------------------------
    def _used(self) -> int:
        return self.foreign + len(self.gone) + sum(len(j.pods) for j in self.jobs.values() if j.spec.namespace == "a")

    def _refusal(self, job: Played) -> str:
        if job.spec.namespace != "a":
            return ""
        if self.refuses_all:
            return "AdmissionDenied"
        if self.most_of_a_job is not None and len(job.pods) >= self.most_of_a_job:
            return "AdmissionDenied"
        return "QuotaExceeded" if self.hard is not None and self._used() >= self.hard else ""

    def _quotas(self) -> list[Quota]:
        if self.hard is None or not self.readable:
            return []
        resource = f"requests.{GPU}"
        left = self.hard - self._used()
        return [Quota("a", QuotaRoom("a/gpus", ((resource, self.hard),), ((resource, left),)))]

    # ---- a step ------------------------------------------------------------------------------------------------------
    def run(self, seconds: int, step: int = 1) -> None:
        for _ in range(max(seconds // step, 1)):
            self.now += timedelta(seconds=step)
            self.gone = [t for t in self.gone if self.now - t < timedelta(seconds=self.lag)]
            quotas = self._quotas()
            views = tuple(self._view(n, j, quotas) for n, j in self.jobs.items())
            seen = Snapshot(self.nodes, views, quotas=tuple(q.room for q in quotas))
            self.shares = dict(allocate(seen, self.policy, self.now).shares)
            for name, job in self.jobs.items():
                self._obey(name, job, self.shares[name])
            for job in self.jobs.values():
                self._bind(job)

    def _view(self, name: str, job: Played, quotas: list[Quota]) -> Job:
        given = self.shares.get(name)
        workers = tuple(Worker(n, node, ONE.demand, job.trains and bool(node)) for n, node in job.pods.items())
        view = replace(
            job.spec, workers=workers, size=(given.size or 0) if given else 0, trains=job.trains,
            admitted=not job.refusal and (job.admitted or bool(workers)),
            refused=job.refused_at if job.refusal and job.attempts > 1 else None,
        )  # fmt: skip
        view = bounded(view, CHARGE, [q for q in quotas if q.namespace == view.namespace])
        obstacle = Obstacle(job.refusal, "by this cluster", refused=True) if job.refusal else None
        return self.promises.follow(view, given, obstacle, self.now)

    def _obey(self, name: str, job: Played, share: Share) -> None:
        size = share.size or 0
        leaving = [n for n in job.pods if n in share.release]
        if leaving and job.trains:
            self._blame(leaving)
        for pod in leaving:
            self._delete(job, pod)
        while len(job.pods) > size:
            self._delete(job, ([n for n, node in job.pods.items() if not node] or list(job.pods))[-1])
        self._note_failure(name, job, size)
        delay = REFUSAL_DELAYS[min(max(job.attempts, 1), len(REFUSAL_DELAYS)) - 1]
        if job.refusal and (self.now - job.refused_at).total_seconds() < delay:
            return
        if len(job.pods) < size:
            self._create(job, size)
        elif share.probe:
            self._answered(job, self._refusal(job), created=0)
            job.admitted = not job.refusal

    def _blame(self, leaving: list[str]) -> None:
        """Workers leave for a job that waits for its minimum; there is only one such job that others leave for."""
        for name in self.jobs:
            if "other workers are leaving" in self.shares[name].message:
                self.lost[name] = self.lost.get(name, 0) + len(leaving)

    def _note_failure(self, name: str, job: Played, size: int) -> None:
        if size >= job.spec.min and not job.trains:
            job.had_room = True
        elif job.had_room and not size:
            job.had_room = False
            before, facts = self.failures.get(name), self.facts(name)
            same = before is not None and before.facts[0] == facts[0]  # a changed spec begins anew
            self.failures[name] = Failure(self.now, facts, before.number + 1 if before and same else 1)

    def _create(self, job: Played, size: int) -> None:
        wanted = 1 if job.refusal else size - len(job.pods)
        created, refusal = 0, ""
        for _ in range(wanted):
            refusal = self._refusal(job)
            if refusal:
                break
            job.births += 1
            created += 1
            job.pods[f"{job.spec.name}-{job.births}"] = ""
        self._answered(job, refusal, created)

    def _answered(self, job: Played, refusal: str, created: int) -> None:
        job.attempts = (0 if created else job.attempts) + 1 if refusal else 0
        job.refusal, job.refused_at = refusal, self.now

    def _delete(self, job: Played, pod: str) -> None:
        del job.pods[pod]
        if job.spec.namespace == "a":
            self.gone.append(self.now)

    def _bind(self, job: Played) -> None:
        for pod in [n for n, node in job.pods.items() if not node]:
            if sum(j.bound for j in self.jobs.values()) < self.devices:
                job.pods[pod] = "n"
        job.trains = (job.trains and job.bound > 0) or job.bound >= job.spec.min
        if job.trains:
            job.had_room = False
            self.failures.pop(job.spec.name, None)
