"""Shares the cluster out between all jobs: collects claims, calls ``allocate``, distributes the shares."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ParamSpec, Protocol, TypeVar

import structlog

from elastrain_operator import clock
from elastrain_operator.allocation import promise as promises
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import (
    Claims,
    Held,
    Job,
    Node,
    Policy,
    Share,
    Snapshot,
    WorkerShape,
)
from elastrain_operator.cluster import faults
from elastrain_operator.cluster.quotas import Quota, bounded
from elastrain_operator.facts import Pod
from elastrain_operator.metrics import process as metrics
from elastrain_operator.pod.leaving import held as held_by
from elastrain_operator.waiting import until

COALESCE = 0.1
"""Seconds between the first change and the allocation, so that concurrent changes cause one allocation."""
REST = 0.3
"""Least seconds between two allocations."""
IDLE_PARTS = 5
"""The pause after an allocation is at least this multiple of the processor time it took: see :func:`rest`."""
NEW_EXPLANATIONS = 20
"""Most jobs for which only the explanation is updated after an allocation: each update writes a status."""
NOT_YET = Share(None, "CapacityUnknown", "the cluster is unknown yet", is_answer=False)
"""The share of a job that the allocator has not seen."""
AGAIN = 60.0
"""Seconds until an allocation that has failed is tried again without a change."""
FAULT_LASTS = timedelta(seconds=600)
"""How long a job with which the allocation fails is set aside, unless its claims change."""
FAILING = timedelta(seconds=300)
"""Since when allocations have failed if the health endpoint is to say that this process does not work."""

_P = ParamSpec("_P")
_T = TypeVar("_T")

log = structlog.get_logger(__name__)


class ClusterView(Protocol):
    """The part of :class:`elastrain_operator.cluster.inventory.Inventory` that is used."""

    @property
    def problem(self) -> str | None: ...

    @property
    def looks(self) -> bool: ...

    @property
    def denied(self) -> bool: ...

    def nodes(self, now: datetime) -> tuple[Node, ...]: ...

    def next_change(self, now: datetime) -> float | None: ...

    def priority(self, name: str) -> int: ...

    def preempts(self, name: str) -> bool: ...

    def quotas(self, namespace: str) -> Iterable[Quota]: ...


class ClaimedDevices(Protocol):
    """The part of :class:`elastrain_operator.devices.watch.Devices` that is used."""

    def problem(self, snapshot: Snapshot) -> str | None: ...

    def resolve(self, snapshot: Snapshot, workers: Collection[str], now: datetime) -> Snapshot: ...

    def next_change(self, now: datetime) -> float | None: ...


class Capacity:
    """Claims in, shares out. Losing its state is safe: jobs keep the size in their status."""

    def __init__(self, policy: Policy, on_share: Callable[[str], None]) -> None:
        """``on_share`` is called with the UID of a job whose share has changed."""
        self._policy = policy
        self._on_share = on_share
        self._claims: dict[str, Claims] = {}
        self._shares: dict[str, Share] = {}
        self._resized: dict[str, datetime] = {}
        self._promises = promises.Promises()
        self._pods: dict[str, tuple[str, Held]] = {}
        """Bound worker pods by UID, each with the UID of its job: they hold room even if no job claims them."""
        self._alive: set[str] = set()
        """UIDs of worker pods that have not ended, bound or not: the devices of their claims are theirs."""
        self._reserved: dict[str, Mapping[WorkerShape, int]] = {}
        """By UID of a job: its pods that Kueue has admitted and that are not bound yet."""
        self._lacking: dict[str, tuple[Mapping[WorkerShape, int], int]] = {}
        """By UID: what was reserved at the last allocation, and how many of these pods have no room."""
        self._least = -(2**31)
        """The lowest priority of any job, by the last allocation."""
        self._cluster: ClusterView | None = None
        self._faulty: dict[str, tuple[str, Job, datetime]] = {}
        """By UID of a job with which the allocation fails: the error, the job then, and when that was."""
        self._failing: tuple[datetime, str] | None = None
        """Since when allocations fail for a cause that is no job's, and the error."""
        self._changed = asyncio.Event()
        self._unknown = NOT_YET
        self._explained = ""
        """UID of the job whose explanation alone was updated last: the others come first next time."""

    # ---- health ------------------------------------------------------------------------------------------------------
    def health(self) -> str:
        """For the health endpoint: ``current``, or what fails."""
        if self._failing is not None:
            since, error = self._failing
            return f"failing since {since.isoformat(timespec='seconds')}: {error}"
        if self._faulty:
            names = sorted(f"{job.namespace}/{job.name}" for _, job, _ in self._faulty.values())
            return f"jobs set aside: {', '.join(names)}"
        return "current"

    @property
    def is_failing(self) -> bool:
        """Whether no job has been given a share for long, for a cause that is no job's."""
        return self._failing is not None and clock.now() - self._failing[0] >= FAILING

    # ---- what jobs see -----------------------------------------------------------------------------------------------
    def share_of(self, uid: str) -> Share:
        return self._shares.get(uid, self._unknown)

    def claim(self, uid: str, claims: Claims) -> None:
        """A job's current claims."""
        before = self._claims.get(uid)
        self._claims[uid] = claims
        self._reserved.pop(uid, None)
        if claims.job is None:
            self._shares.pop(uid, None)  # if it resumes, it must be admitted again
            self._promises.forget(uid)
        if claims.differs(before):
            self.nudge()

    def reserve(self, uid: str, admitted: Mapping[WorkerShape, int] | None, priority_class: str = "") -> int:
        """Kueue decides the job's size; ``admitted``: its pods that are not bound yet. None: unknown, as before.
        Returns how many must not be created: the scheduler would evict another job's worker, or may do so."""
        self._drop(uid)
        if admitted is not None and admitted != self._reserved.get(uid, {}):
            self._reserved[uid] = admitted
            self.nudge()
        kinds, cluster = self._reserved.get(uid, {}), self._cluster
        if cluster is None or cluster.problem or not cluster.preempts(priority_class):
            return 0
        before, lacking = self._lacking.get(uid, ({}, 0))
        lacking = lacking if before == kinds else sum(kinds.values())
        return lacking if cluster.priority(priority_class) > self._least else 0

    def forget(self, uid: str) -> None:
        """A job is gone."""
        self._drop(uid)
        self._lacking.pop(uid, None)
        if self._reserved.pop(uid, None):
            self.nudge()

    def _drop(self, uid: str) -> None:
        if uid not in self._claims:
            return
        for known in (self._claims, self._shares, self._resized, self._faulty):
            known.pop(uid, None)
        self._promises.forget(uid)
        self.nudge()

    def pod_seen(self, job_uid: str, pod: Pod | None, pod_uid: str) -> None:
        """The current version of a worker pod; ``pod`` None: it is gone."""
        before = self._pods.pop(pod_uid, None)
        (self._alive.add if pod and not pod.over else self._alive.discard)(pod_uid)
        if pod and pod.node and not pod.over:
            self._pods[pod_uid] = (job_uid, held_by(pod))
        if self._pods.get(pod_uid) != before and job_uid not in self._claims:
            self.nudge()

    def other_pod_seen(self, pod_uid: str, held: Held | None) -> None:
        """What a pod holds that belongs to no job; None: nothing any more."""
        before = self._pods.pop(pod_uid, None)
        if held is not None:
            self._pods[pod_uid] = ("", held)
        if self._pods.get(pod_uid) != before:
            self.nudge()

    def quota_seen(self, namespace: str) -> None:
        """A ResourceQuota of a namespace has changed."""
        if any(c.job is not None and c.job.namespace == namespace for c in self._claims.values()):
            self.nudge()

    def nudge(self) -> None:
        """Something may have changed."""
        self._changed.set()

    # ---- the one task ------------------------------------------------------------------------------------------------
    async def run(self, cluster: ClusterView, devices: ClaimedDevices | None = None) -> None:
        """Until cancelled. ``devices``: those that workers claim; None: claims are not counted."""
        self._cluster = cluster
        again: float | None = None
        while True:
            await until(self._changed, again)
            await asyncio.sleep(COALESCE)
            self._changed.clear()
            spent = 0.0
            try:
                again, spent = await self._share_out(cluster, devices)
                self._failing = None
            except Exception as error:
                # A bug must neither end the allocations nor stay hidden: jobs keep their shares.
                log.exception("allocation failed")
                metrics.ERRORS.labels("operator").inc()
                since = self._failing[0] if self._failing else clock.now()
                again, self._failing = AGAIN, (since, f"{type(error).__name__}: {error}")
            await asyncio.sleep(rest(spent))

    async def _share_out(self, cluster: ClusterView, devices: ClaimedDevices | None) -> tuple[float | None, float]:
        """One allocation; returns the seconds after which time alone requires another, and its seconds of processor
        time."""
        if cluster.problem:
            self._not_known(cluster.problem, denied=cluster.denied, looks=cluster.looks)
            return None, 0.0
        self._unknown, now = NOT_YET, clock.now()
        given = tuple(self._reserved.items())
        snapshot, before = timed(self._snapshot, cluster, given, now)
        if devices is not None:
            if problem := devices.problem(snapshot):
                self._not_known(problem, denied=False, looks=True)
                return None, before
            snapshot, spent = timed(devices.resolve, snapshot, self._alive, now)
            before += spent
        # In a thread, so that the jobs' loops continue; all its arguments are immutable.
        known = self._known_faults(snapshot.jobs, now)
        shared, during = await asyncio.to_thread(timed, faults.share_out, allocate, snapshot, self._policy, now, known)
        self._note_faults(snapshot.jobs, shared.faults, now, during)
        made = shared.made
        _, after = timed(self._distribute, snapshot.jobs, made.shares, now)
        self._note_lacking(given, made.lacking)
        times = (
            made.again,
            AGAIN if shared.faults else None,
            cluster.next_change(now),
            devices.next_change(now) if devices else None,
            self._promises.next_change(now),
        )
        return min((s for s in times if s is not None), default=None), before + during + after

    def _snapshot(
        self, cluster: ClusterView, given: Iterable[tuple[str, Mapping[WorkerShape, int]]], now: datetime
    ) -> Snapshot:
        wanted = [(c, c.job) for c in self._claims.values() if c.job]
        quotas = {namespace: tuple(cluster.quotas(namespace)) for namespace in {job.namespace for _, job in wanted}}
        values = {j.uid: cluster.priority(c.priority_class) if c.priority is None else c.priority for c, j in wanted}
        queued = (held.priority for job, held in self._pods.values() if job and job not in self._claims)
        self._least = least = min((*values.values(), *queued), default=0)
        nodes = cluster.nodes(now)
        seen = _fingerprints(nodes, [job for _, job in wanted])
        jobs = tuple(
            self._job(
                c, bounded(j, c.charge, quotas[j.namespace]), values[j.uid], least, seen[j.namespace], cluster, now
            )
            for c, j in wanted
        )
        leaving = [held for c in self._claims.values() for held in c.leaving]
        leaving += [held for job, held in self._pods.values() if job not in self._claims]
        reserved = [item for _, kinds in given for item in kinds.items()]
        rooms = [q.room for there in quotas.values() for q in there]
        return Snapshot(nodes, jobs, tuple(leaving), tuple(reserved), tuple(rooms))

    def _note_lacking(self, given: Iterable[tuple[str, Mapping[WorkerShape, int]]], lacking: Iterable[int]) -> None:
        left = iter(lacking)
        for uid, kinds in given:
            new = (kinds, sum(next(left, 0) for _ in kinds))
            if uid in self._reserved and self._lacking.get(uid) != new:
                self._lacking[uid] = new
                self._on_share(uid)

    def _known_faults(self, jobs: Iterable[Job], now: datetime) -> dict[str, str]:
        """Faults of earlier passes, by UID: of jobs that have not changed since, for a while."""
        same = {j.uid: self._faulty[j.uid] for j in jobs if j.uid in self._faulty}
        unchanged = {j.uid for j in jobs if j.uid in same and j.generation == same[j.uid][1].generation}
        return {uid: error for uid, (error, _, at) in same.items() if uid in unchanged and now - at < FAULT_LASTS}

    def _note_faults(self, jobs: Iterable[Job], faults: Mapping[str, str], now: datetime, took: float) -> None:
        """``took``: seconds of processor time of all allocations that it took to find them."""
        before, self._faulty = self._faulty, {}
        for job in (j for j in jobs if j.uid in faults):
            known = before.get(job.uid)
            is_same = known is not None and known[0] == faults[job.uid] and now - known[2] < FAULT_LASTS
            self._faulty[job.uid] = known if known and is_same else (faults[job.uid], job, now)
            if not is_same:
                log.error(
                    "job set aside", job=f"{job.namespace}/{job.name}", error=faults[job.uid], took_s=round(took, 3)
                )
                metrics.ERRORS.labels("operator").inc()

    def _distribute(self, jobs: Sequence[Job], shares: Mapping[str, Share], now: datetime) -> None:
        text = NEW_EXPLANATIONS
        last = next((n for n, job in enumerate(jobs, 1) if job.uid == self._explained), 0)
        for job in (*jobs[last:], *jobs[:last]):
            if self._claims.get(job.uid) is None or self._claims[job.uid].job is None:
                continue  # gone, ended or suspended in the meantime
            share, before = shares[job.uid], self._shares.get(job.uid)
            if share.differs(before):
                self._give(job, share, now)
            elif before is not None and share.message != before.message and text:
                text, self._explained = text - 1, job.uid
                self._give(job, share, now)

    def _give(self, job: Job, share: Share, now: datetime) -> None:
        if share.size != job.size:
            self._resized[job.uid] = now
            log.info("share", job=f"{job.namespace}/{job.name}", size=share.size, was=job.size, why=share.message)
        self._shares[job.uid] = share
        self._on_share(job.uid)

    def _job(  # noqa: PLR0917 - all that is known of a job
        self, claims: Claims, job: Job, priority: int, least: int, fingerprint: int, cluster: ClusterView, now: datetime
    ) -> Job:
        """The allocator's view of the ``job`` of these claims, and what became of its grants. ``least``: the lowest
        priority of any job; ``fingerprint``: as in :class:`promises.Promise`."""
        given = self._shares.get(job.uid)
        return self._promises.follow(
            replace(
                job,
                # Admission decides whether the job may use its class.
                priority=priority if job.admitted else min(priority, cluster.priority("")),
                evicts=priority > least and cluster.preempts(claims.priority_class),
                size=given.size if given and given.size is not None else job.size,
                resized=self._resized.get(job.uid, job.resized),
            ),
            given,
            claims.obstacle,
            now,
            fingerprint,
        )

    def _not_known(self, problem: str, *, denied: bool, looks: bool) -> None:
        """Jobs keep their size and report why, unless this operator has just begun and ``looks``; new jobs do not wait
        if a permission is missing."""
        rule = "running jobs keep their size, new ones start with minReplicas" if denied else "jobs keep their size"
        text = f"the cluster is unknown: {problem}; meanwhile {rule}"
        self._unknown = Share(None, "CapacityUnknown", text, blind=denied, is_answer=not looks)
        for uid, claims in self._claims.items():
            if claims.job and self._unknown.differs(self._shares.get(uid)):
                self._shares[uid] = self._unknown
                self._on_share(uid)


def _fingerprints(nodes: Iterable[Node], jobs: Iterable[Job]) -> dict[str, int]:
    """Namespace → a number for what the scheduler looks at, beside requests: nodes, and jobs in any order."""
    those = hash(tuple((n.name, n.ready, n.cordoned, n.taints, frozenset(n.labels.items())) for n in nodes))
    found: dict[str, int] = {}
    for job in jobs:
        found[job.namespace] = found.get(job.namespace, those) ^ hash(job.uid)
    return found


def rest(spent: float) -> float:
    """Seconds without an allocation after one that took ``spent`` seconds of processor time.

    Allocations then use at most a fifth of a core, while changes keep arriving. Their duration would not do: it grows
    with the load of the machine, and changes of a spec would wait for it most where the machine is busy.
    """
    return max(REST, IDLE_PARTS * spent)


def timed(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> tuple[_T, float]:
    """What ``function`` returns, and the seconds of processor time that the calling thread took for it."""
    began = time.thread_time()
    return function(*args, **kwargs), time.thread_time() - began
