"""The operator put together: clients, mirror, loops and sweeper, and what an event means for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import structlog

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient
from elastrain_operator.apply import Executor
from elastrain_operator.config import OperatorConfig
from elastrain_operator.coordination import Mirror
from elastrain_operator.kube import Kube
from elastrain_operator.loops import JobLoop, Loops, PodsOf
from elastrain_operator.metrics import process as metrics
from elastrain_operator.metrics.jobs import JobSeries
from elastrain_operator.metrics.server import MetricsServer
from elastrain_operator.model import JobRef, Outage
from elastrain_operator.sweep import Sweeper

FIRST_LIST_SECONDS = 5.0
"""How long the start waits for etcd, so that the first plans know it."""

log = structlog.get_logger(__name__)


class App:
    """One operator process. ``start`` and ``stop`` run in the event loop that everything else runs in."""

    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._loops = Loops(self._make_loop)
        self._pods_of: PodsOf = lambda _: ()
        self._mirror: Mirror | None = None
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """Connect. An etcd that does not answer is no reason not to start: jobs say so in their conditions.

        Raises ``ConfigException`` if there is neither a service account nor a kubeconfig, and ``OSError`` if the
        port of the metrics is taken.
        """
        config, undo = self._config, self._started
        if config.metrics_port:
            self._serve_metrics(config.metrics_port)
        self._kube = await Kube.connect()
        undo.push_async_callback(self._kube.close)
        etcd = EtcdClient(config.etcd)
        undo.push_async_callback(asyncio.to_thread, etcd.close)
        self._mirror = Mirror(etcd, config.cluster, self._etcd_changed)
        self._mirror.start()
        undo.push_async_callback(self._mirror.close)
        if not await self._mirror.wait_listed(FIRST_LIST_SECONDS):
            log.warning("etcd does not answer yet", endpoints=config.etcd.endpoints)
        self._executor = Executor(self._kube, self._mirror, config)
        undo.push_async_callback(self._loops.stop)
        self._sweeper = Sweeper(self._kube, self._mirror, self._is_served)
        sweeping = asyncio.create_task(self._sweeper.run(), name="sweeper")
        undo.callback(sweeping.cancel)
        log.info("started", endpoints=config.etcd.endpoints, namespaces=config.namespaces or "all")

    def _serve_metrics(self, port: int) -> None:
        undo = self._started
        jobs = JobSeries(self._loops.meters)
        metrics.ETCD_CONNECTED.set_function(lambda: float(self._mirror is not None and not self._mirror.outage))
        server = MetricsServer(lambda: metrics.text() + jobs.text().encode(), port)
        undo.push_async_callback(asyncio.to_thread, server.close)
        lag = asyncio.create_task(metrics.measure_lag(), name="event loop lag")
        undo.callback(lag.cancel)

    async def stop(self) -> None:
        """Let go at once: whatever was going on is seen and planned again by the next operator."""
        await self._started.aclose()
        log.info("stopped")

    def state(self) -> dict[str, Any]:
        """For the health endpoint. An etcd outage is told but is no reason to restart the operator."""
        outage = self._mirror.outage if self._mirror else Outage()
        return {"jobs": len(self._loops), "etcd": outage.message if outage else "connected"}

    # ---- events ----------------------------------------------------------------------------------------------------
    async def job_event(self, kind: str | None, body: Mapping[str, Any], pods_of: PodsOf) -> None:
        """A job was listed (``kind`` None), ADDED, MODIFIED or DELETED."""
        self._pods_of = pods_of
        if kind == "DELETED":
            await self._loops.forget(body["metadata"]["uid"])
            self._sweeper.nudge()
        else:
            self._loops.see(body, pods_of)

    def pod_event(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """A worker pod was listed (``kind`` None), ADDED, MODIFIED or DELETED."""
        meta = body["metadata"]
        job_uid = meta.get("labels", {}).get(names.LABEL_JOB_UID, "")
        if kind == "DELETED":
            self._loops.pod_gone(job_uid, meta["uid"])
            self._sweeper.nudge()
        self._loops.wake(job_uid)

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _make_loop(self, job: JobRef) -> JobLoop:
        assert self._mirror is not None, "kopf calls event handlers after start"
        return JobLoop(job, self._executor, self._kube, self._mirror, self._config)

    def _etcd_changed(self, keys: JobKeys | None) -> None:
        if keys is None:
            self._loops.wake_all()
        else:
            self._loops.wake(keys.uid)

    def _is_served(self, keys: JobKeys) -> bool:
        return keys.uid in self._loops or any(True for _ in self._pods_of(keys.uid))
