"""The operator's composition: clients, mirror, loops and sweeper, and the effect of events on them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import structlog

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient
from elastrain_operator.cluster.capacity import Capacity
from elastrain_operator.cluster.inventory import Inventory
from elastrain_operator.config import OperatorConfig
from elastrain_operator.devices.watch import Devices
from elastrain_operator.facts import JobRef, Outage, Pod
from elastrain_operator.job.executor import Executor
from elastrain_operator.job.loop import JobLoop
from elastrain_operator.job.loops import Loops
from elastrain_operator.job.meter import JobSeries
from elastrain_operator.job.recorder import Recorder
from elastrain_operator.kube.client import Kube, Tenure
from elastrain_operator.kube.repeats import answered
from elastrain_operator.kueue.jobs import KueueJobs
from elastrain_operator.kueue.watch import Watch
from elastrain_operator.leader.fencing import FencedEtcd
from elastrain_operator.metrics import certificate
from elastrain_operator.metrics import process as metrics
from elastrain_operator.metrics.server import MetricsServer
from elastrain_operator.records import writes
from elastrain_operator.records.logins import JobLogins
from elastrain_operator.records.mirror import Mirror
from elastrain_operator.records.sweep import Sweeper
from elastrain_operator.supervise import Tasks
from elastrain_operator.users import EtcdUsers
from elastrain_operator.watch.jobs import Jobs
from elastrain_operator.watch.pods import WorkerPods

ETCD_SECONDS = 5.0
"""Seconds that the start waits for etcd, so that the first plans have its records."""
FIRST_LIST_SECONDS = 60.0
"""Seconds that the start waits for the first lists of jobs and pods."""
GARBAGE = (20_000, 20, 50)
"""Thresholds of the garbage collector's three generations (Python's own: 700, 10, 10)."""

log = structlog.get_logger(__name__)


class App:
    """One operator process. ``start`` and ``stop`` run in the event loop that everything else runs in."""

    def __init__(
        self,
        config: OperatorConfig,
        tenure: Tenure | None = None,
        fence: Callable[[EtcdClient], FencedEtcd] | None = None,
    ) -> None:
        """``tenure`` and ``fence`` keep a process that does not lead from writing; None: there is only one."""
        self._config = config
        self._tenure = tenure
        self._fence = fence
        self._loops = Loops(self._make_loop)
        self._endings: set[asyncio.Task[None]] = set()
        self._mirror: Mirror | None = None
        self._logins: JobLogins | None = None
        self._pods: WorkerPods | None = None
        self._capacity = Capacity(config.capacity.policy(), self._loops.wake) if config.capacity else None
        self._tasks = Tasks()
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """Connect. The operator starts without etcd as well: conditions of the jobs show the outage.

        Raises ``kopf.LoginError`` if there is neither a service account nor a kubeconfig, ``ApiError`` if jobs or pods
        of no namespace can be listed for a minute, and ``OSError`` if the port of the metrics is taken.
        """
        config, undo = self._config, self._started
        if config.metrics_port:
            self._serve_metrics(config.metrics_port)
        self._kube = await Kube.connect(self._tenure)
        undo.push_async_callback(self._kube.close)
        etcd = EtcdClient(config.etcd)
        undo.push_async_callback(asyncio.to_thread, etcd.close)
        self._mirror = await self._connect(etcd)
        self._run("trial of etcd's writes", partial(writes.watch, etcd, self._mirror.writes))
        if config.job_key is not None:
            self._logins = JobLogins(EtcdUsers(etcd), self._kube, self._mirror, config, self._loops.wake_all)
            self._run("logins", self._logins.run)
        if config.etcd.ca is not None:
            self._run("expiry of etcd's certificate", partial(certificate.watch, config.etcd))
        recorder = Recorder(self._kube)
        self._run("events", recorder.run)
        undo.push_async_callback(recorder.close)
        self._queue = self._queued(recorder) if config.kueue else None
        self._executor = Executor(self._kube, self._mirror, config, recorder, self._logins, self._queue)
        undo.push_async_callback(self._loops.stop)
        self._sweeper = Sweeper(self._kube, self._mirror, self._is_served, self._logins)
        on_other_pod = self._capacity.other_pod_seen if self._capacity else lambda *_: None
        pods = self._pods = WorkerPods(self._kube, config.namespaces, self._pod_changed, on_other_pod)
        self._jobs = Jobs(
            self._kube, config.namespaces, config.resync, known=self._loops.jobs, has_pods_of=pods.has,
            on_job=lambda body: self._loops.see(body, pods.of), on_deleted=self._job_deleted,
        )  # fmt: skip
        pods.on_listed = self._jobs.pods_listed
        self._run("worker pods", pods.run)
        if self._capacity:
            shared = self._capacity
            inventory = Inventory(self._kube, shared.nudge, pods.see, shared.quota_seen)
            self._run("inventory", inventory.run)
            devices = Devices(self._kube, shared.nudge)
            self._run("claimed devices", devices.run)
            self._run("capacity", partial(self._capacity.run, inventory, devices))
        await pods.listed(FIRST_LIST_SECONDS)  # no job is planned while its pods are unknown
        # kopf asks only once, at its start, whether the API server serves jobs.
        await answered(self._jobs.search, FIRST_LIST_SECONDS, "jobs are not listed yet")
        self._run("search for deleted jobs", self._jobs.run)
        self._run("sweeper", self._sweeper.run)
        _relieve_collector()
        log.info("started", endpoints=config.etcd.endpoints, namespaces=config.namespaces or "all")

    async def _connect(self, etcd: EtcdClient) -> Mirror:
        """The mirror of all records; waits a moment for etcd."""
        mirror = Mirror(
            self._fence(etcd) if self._fence else etcd,
            self._config.owner,
            self._etcd_changed,
            self._steps_made,
            self._job_refused,
        )
        mirror.start()
        self._started.push_async_callback(mirror.close)
        if not await mirror.wait_listed(ETCD_SECONDS):
            log.warning("etcd does not answer yet", endpoints=self._config.etcd.endpoints)
        return mirror

    def _queued(self, recorder: Recorder) -> KueueJobs:
        """Kueue's part of the jobs' loops."""
        watch = Watch(self._kube, self._config.namespaces, self._loops.wake, self._loops.wake_all)
        self._run("Kueue", watch.run)
        return KueueJobs(watch, self._kube, recorder.record)

    def _run(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """In a supervised task that ends with the operator."""
        self._started.callback(self._tasks.start(name, run).cancel)

    def _serve_metrics(self, port: int) -> None:
        undo = self._started
        jobs = JobSeries(self._loops.meters)
        metrics.ETCD_CONNECTED.set_function(lambda: float(self._mirror is not None and not self._mirror.outage))
        server = MetricsServer(lambda: metrics.text() + jobs.text().encode(), port)
        undo.push_async_callback(asyncio.to_thread, server.close)
        self._run("event loop lag", metrics.measure_lag)

    async def stop(self) -> None:
        """End at once: the next operator observes and plans unfinished work again."""
        await self._started.aclose()
        log.info("stopped")

    def state(self) -> dict[str, Any]:
        """For the health endpoint. It shows an etcd outage, which is no reason to restart the operator."""
        outage = self._mirror.outage or self._mirror.refusal if self._mirror else Outage()
        return {
            "jobs": len(self._loops),
            "unplanned": self._loops.unplanned,
            "etcd": outage.message if outage else "connected",
            "pods": (self._pods.problem or "current") if self._pods else "not watched yet",
            "allocation": self._capacity.health() if self._capacity else "off",
            "failing": bool(self._capacity and self._capacity.is_failing),
            "failed": self._tasks.failures(),
        }

    # ---- jobs and pods ---------------------------------------------------------------------------------------------
    def job_event(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """See :meth:`Jobs.event`."""
        self._jobs.event(kind, body)

    def _job_deleted(self, job: JobKeys) -> None:
        ending = asyncio.create_task(self._forget(job), name=f"end of {job.prefix}")
        self._endings.add(ending)  # asyncio itself keeps no strong reference, and reports an error then
        ending.add_done_callback(self._endings.discard)

    async def _forget(self, job: JobKeys) -> None:
        await self._loops.forget(job.uid)
        if self._capacity:
            self._capacity.forget(job.uid)
        if self._queue:
            self._queue.forget(job.uid)
        self._sweeper.nudge(job)  # last: the loop has ended its writes

    def _pod_changed(self, job: JobKeys, pod: Pod, deleted: bool) -> None:
        if self._capacity:
            holder = "" if self._loops.is_another(job) else job.uid
            self._capacity.pod_seen(holder, None if deleted else pod, pod.uid)
        if deleted:
            self._loops.pod_deleted(job, pod)
            self._sweeper.nudge(job)
        else:
            self._loops.pod_seen(job, pod)

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _make_loop(self, job: JobRef) -> JobLoop:
        assert self._mirror is not None, "jobs are watched after start"
        return JobLoop(job, self._executor, self._kube, self._mirror, self._config, self._capacity, self._queue)

    def _etcd_changed(self, keys: JobKeys | None) -> None:
        if keys is None:
            if self._logins is not None:
                self._logins.nudge()
            self._loops.wake_all()
        else:
            self._loops.wake(keys.uid)

    def _job_refused(self, keys: JobKeys) -> None:
        if self._logins is not None:
            self._logins.suspend(keys)

    def _steps_made(self, keys: JobKeys) -> None:
        self._loops.wake_later(keys.uid)

    def _is_served(self, keys: JobKeys) -> bool:
        namespaces = self._config.namespaces
        if namespaces and keys.namespace not in namespaces:
            return True  # by another operator: this one may not read that namespace
        if self._pods is None or not self._pods.has(keys.namespace):
            return True  # not known
        return keys.uid in self._loops or bool(self._pods.of(keys))


def _relieve_collector() -> None:
    """Exempt existing objects from garbage collection, and collect less often: thousands of jobs are many long-lived
    objects, few of them in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
