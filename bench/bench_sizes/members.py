"""Plays the agents and ranks of all jobs on a control plane whose pods run but contain nothing.

They write to etcd what real ones write: members, generations by the target, progress once a second with the time of a
step, rescales with their pause. As real ones, joiners that are about to be ready are waited for (``decide.Timing``),
and workers that leave do so at once. Not played: leases, and what remains of a step when a generation ends.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bench_harness.program import Failed
from bench_operator.cluster import NAMESPACE, ControlPlane
from bench_operator.net import Api, Refused
from bench_sizes.task import KEPT_RESCALES, REPORT_SECONDS, Task, Training, placed
from elastrain.api import names
from elastrain.api.keys import ROOT, JobKeys
from elastrain.api.records import (
    Generation,
    GenerationMember,
    Member,
    Outcome,
    Phase,
    Progress,
    Rescale,
    Target,
    Termination,
)  # fmt: skip
from elastrain.etcd import Batch, EtcdClient, Put
from elastrain.rendezvous.decide import Timing

SAMPLES = 32
"""Of a step, in the reports; sizes do not depend on it."""
SETTLE_SECONDS = Timing().settle
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_JOBS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"


@dataclass
class PlayedJob:
    """A job on the cluster. Times are monotonic seconds."""

    training: Training
    keys: JobKeys
    created: float
    room: bool
    """An accelerator was free at its creation."""
    target: Target | None = None
    running: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Name of a pod that runs → its node, and when its ranks are ready."""
    members: tuple[str, ...] = ()
    """Pods in the generation."""
    enough_since: float | None = None
    """Since when a joiner is ready."""
    rescales: tuple[Rescale, ...] = ()
    reported: float | None = None
    """When progress is due next."""
    seconds: float | None = None
    """Of a step, as last measured."""
    targeted: float | None = None
    """When its first target came."""
    wanted: float | None = None
    """When the target began to ask for more workers than there are; None: it does not."""
    began: float | None = None
    ended: float | None = None
    held: float = 0.0
    """GPU-seconds of pods that ran."""
    starts: list[float] = field(default_factory=list)
    """Seconds from a target to the generation of its size; of growths and the start."""

    @property
    def name(self) -> str:
        return self.training.task.name


class Players:
    """All jobs' agents, in the calling thread; two watches in threads of their own."""

    def __init__(self, plane: ControlPlane, client: EtcdClient, gpus: int, pause: float, startup: float) -> None:
        """``gpus``: of all nodes; ``pause``: seconds of a rescale; ``startup``: from a pod's container until its ranks
        are ready."""
        self.jobs: dict[str, PlayedJob] = {}
        """By UID."""
        self.decisions: list[float] = []
        """Seconds from the end of a worker until the next target of another job that asks for more workers."""
        self._freed: float | None = None
        self._api: Api = plane.api()
        self._watched: Api = plane.api()
        self._client, self._gpus, self._pause, self._startup = client, gpus, pause, startup
        self._news: queue.SimpleQueue[Callable[[float], None]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, PlayedJob]] = []
        self._tie = itertools.count()
        self._error: BaseException | None = None
        self._closed = False
        self._early: dict[str, list[Callable[[float], None]]] = {}
        self._watch = client.watch_prefix(ROOT, lambda batch: self._news.put(lambda now: self._records(batch, now)))
        self._thread = threading.Thread(target=self._pods, daemon=True, name="pods")
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._watched.close()
        self._watch.close()
        self._thread.join(10)
        self._api.close()

    def create(self, task: Task, manifest: dict[str, Any]) -> PlayedJob:
        created = time.monotonic()
        alive = [j for j in self.jobs.values() if j.ended is None]
        room = sum(max(len(j.running), j.target.desired if j.target else 0) for j in alive) < self._gpus
        uid = self._api.call("POST", _JOBS, manifest)["metadata"]["uid"]
        job = self.jobs[uid] = PlayedJob(Training(task), JobKeys(NAMESPACE, task.name, uid), created, room)
        for news in self._early.pop(uid, ()):
            news(created)
        return job

    def play(self, until: float) -> None:
        """Act on news until then. Raises ``Failed`` if the watch of pods has ended."""
        while (now := time.monotonic()) < until:
            if self._error is not None:
                raise Failed(f"the watch of running pods has ended: {self._error}")
            due = self._timers[0][0] if self._timers else until
            if due <= now:
                self._act(heapq.heappop(self._timers)[2], now)
                continue
            try:
                news = self._news.get(timeout=min(due, until) - now)
            except queue.Empty:
                continue
            news(time.monotonic())

    # ---- news --------------------------------------------------------------------------------------------------------
    def _pods(self) -> None:
        query = "fieldSelector=status.phase%3DRunning&watch=true&timeoutSeconds=7200"
        try:
            for event in self._watched.events(f"{_PODS}?{query}"):
                self._news.put(lambda now, event=event: self._pod(event, now))  # type: ignore[misc]
            raise EOFError("the API server has ended it")
        except BaseException as error:
            if not self._closed:
                self._error = error

    def _pod(self, event: dict[str, Any], now: float) -> None:
        meta = event["object"]["metadata"]
        uid = (meta.get("labels") or {}).get(names.LABEL_JOB_UID, "")
        if (job := self.jobs.get(uid)) is None:
            self._early.setdefault(uid, []).append(lambda now: self._pod(event, now))
            return
        name = meta["name"]
        if event["type"] == "DELETED":  # also: it runs no more
            self._forget(job, name, now)
        elif name not in job.running:
            job.running[name] = event["object"]["spec"]["nodeName"], now + self._startup
            job.held -= now
            self._member(job, name, Phase.WARMING)
            self._later(job, now + self._startup)
        self._act(job, now)

    def _records(self, batch: Batch, now: float) -> None:
        for event in batch.events:
            keys = JobKeys.of(event.kv.key) if isinstance(event, Put) else None
            if keys is None or not isinstance(event, Put) or event.kv.key != keys.target:
                continue
            if (job := self.jobs.get(keys.uid)) is None:
                one = Batch((event,), batch.revision)
                self._early.setdefault(keys.uid, []).append(lambda now, one=one: self._records(one, now))  # type: ignore[misc]
                continue
            job.target = Target.decode(event.kv.value)
            if job.targeted is None and job.target.desired:
                job.targeted = now
            more = job.target.desired > len(job.members)
            job.wanted = (job.wanted or now) if more else None
            if more and job.members and self._freed is not None:
                if now - self._freed < SETTLE_SECONDS:  # else it is the answer to something else
                    self.decisions.append(now - self._freed)
                self._freed = None
            self._act(job, now)

    def _later(self, job: PlayedJob, at: float) -> None:
        heapq.heappush(self._timers, (at, next(self._tie), job))

    # ---- acting ------------------------------------------------------------------------------------------------------
    def _act(self, job: PlayedJob, now: float) -> None:
        if job.ended is not None or job.target is None:
            return
        if job.members and now >= job.training.ends:
            self._finish(job)
            return
        self._regroup(job, job.target, now)
        if job.reported is not None and now >= job.reported:
            self._report(job, now)

    def _regroup(self, job: PlayedJob, target: Target, now: float) -> None:
        """Form the generation that the target asks for, as the leader would."""
        leaving = set(target.leaving) if target.desired else set(job.running)
        stay = [name for name in job.members if name in job.running and name not in leaving]
        fresh = [name for name in sorted(job.running) if name not in leaving and name not in stay]
        ready = [name for name in fresh if job.running[name][1] <= now]
        job.enough_since = (job.enough_since or now) if ready else None
        wanted = (*stay, *ready[: max(target.desired - len(stay), 0)])
        lost = len(stay) < len(job.members)
        if wanted != job.members and len(wanted) >= target.min:
            short = len(wanted) < target.desired and (len(ready) < len(fresh) or not job.members)
            until = (job.enough_since or now) + SETTLE_SECONDS
            if not lost and short and now < until:
                self._later(job, until)
            else:
                self._form(job, target, wanted, now)
        for name in [name for name in job.running if name in leaving and name not in job.members]:
            self._end(job, name, Outcome.DRAINED)
            self._forget(job, name, now)

    def _form(self, job: PlayedJob, target: Target, wanted: tuple[str, ...], now: float) -> None:
        training, before = job.training, len(job.members)
        training.enter(now, placed(job.running[name][0] for name in wanted), self._pause)
        number = training.generations
        if job.wanted is not None and len(wanted) >= target.desired:
            job.starts.append(now - job.wanted)
            job.wanted = None
        job.began = job.began or now
        job.members = wanted
        generation = Generation(
            number=number, reason=target.reason or "Start", leader=_id(wanted[0]), step=int(training.entered),
            members=tuple(
                GenerationMember(id=_id(name), worker=name, address="127.0.0.1", store_port=29500, rank_offset=i)
                for i, name in enumerate(wanted)
            ),
        )  # fmt: skip
        records = {job.keys.member(_id(name)): self._record(job, name, Phase.READY).encode() for name in wanted}
        self._client.put_all({**records, job.keys.generation: generation.encode()})
        rescale = Rescale(
            generation=number, from_size=before, to_size=len(wanted), reason=generation.reason,
            step=int(training.entered), pause_seconds=round(self._pause + training.step, 4),
        )  # fmt: skip
        job.rescales = (*job.rescales, rescale)[-KEPT_RESCALES:]
        job.reported = training.first_commit
        self._later(job, training.first_commit)
        self._later(job, training.ends)

    def _report(self, job: PlayedJob, now: float) -> None:
        training = job.training
        if training.steps(now) - training.entered >= 2:
            job.seconds = training.step
        self._progress(job, training.steps(now))
        job.reported = now + REPORT_SECONDS
        self._later(job, job.reported)

    def _progress(self, job: PlayedJob, steps: float, *, finished: bool = False) -> None:
        """Without the number of all steps: how long a job still takes is not known to the policy."""
        size = len(job.members)
        progress = Progress(
            generation=job.training.generations, world_size=size, members=size, step=int(steps),
            samples=SAMPLES * int(steps), step_seconds=job.seconds, rescales=job.rescales, finished=finished,
        )  # fmt: skip
        self._client.put(job.keys.progress, progress.encode())

    def _finish(self, job: PlayedJob) -> None:
        job.ended = job.training.ends
        self._progress(job, job.training.task.steps, finished=True)
        for name in list(job.running):
            self._end(job, name, Outcome.FINISHED)
            self._forget(job, name, job.ended)

    def _forget(self, job: PlayedJob, name: str, now: float) -> None:
        if job.running.pop(name, None):
            job.held += now

    def _end(self, job: PlayedJob, name: str, outcome: Outcome) -> None:
        """The agent deletes its record and ends; the kubelet reports the container's end."""
        self._client.delete(job.keys.member(_id(name)))
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        record = Termination(outcome=outcome, step=int(job.training.entered))
        ended = {"exitCode": 0, "message": record.encode().decode(), "startedAt": stamp, "finishedAt": stamp}
        container = {
            "name": "trainer", "image": "trainer:1", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": ended},
        }  # fmt: skip
        status = {"phase": "Succeeded", "containerStatuses": [container]}
        self._freed = time.monotonic()
        try:
            self._api.merge(f"{_PODS}/{name}/status", {"status": status})
        except Refused as error:
            if "not found" not in str(error):
                raise

    def _member(self, job: PlayedJob, name: str, phase: Phase) -> None:
        self._client.put(job.keys.member(_id(name)), self._record(job, name, phase).encode())

    def _record(self, job: PlayedJob, name: str, phase: Phase) -> Member:
        number = job.training.generations if name in job.members else 0
        return Member(
            id=_id(name), worker=name, address="127.0.0.1", store_port=29500, phase=phase, generation=number,
            step=int(job.training.entered),
        )  # fmt: skip


def _id(pod: str) -> str:
    return f"{pod}.played"
