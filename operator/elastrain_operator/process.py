"""The lifecycle of one operator process: stand by, lead, end. Only a leader starts kopf; a stand-by writes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import kopf
import structlog

from elastrain.api.names import EXIT_INFRASTRUCTURE
from elastrain.etcd import EtcdClient
from elastrain_operator.app import App
from elastrain_operator.config import OperatorConfig
from elastrain_operator.handlers import register
from elastrain_operator.health import answering
from elastrain_operator.kube.access import Tenure
from elastrain_operator.kube.client import ApiError, Kube
from elastrain_operator.kube.repeats import answered
from elastrain_operator.leader.election import Elector, Leases
from elastrain_operator.leader.fencing import FencedEtcd, fence_key
from elastrain_operator.leader.lease import Terms

STUCK_SECONDS = Terms().stuck
END_SECONDS = 20.0
"""Longest time from a signal to the end of the process, in seconds."""

IDENTIFY_SECONDS = 60.0
"""Seconds within which the API server must name its cluster."""

log = structlog.get_logger(__name__)


async def serve(config: OperatorConfig) -> int:
    """Run until SIGTERM or SIGINT, or until another replica leads; returns the process's exit code.

    0: it was stopped by a signal. ``EXIT_INFRASTRUCTURE``: it has lost its Lease. It does not stand by again in this
    process, so no state from its time as leader remains; Kubernetes starts a new process. The same if it cannot start,
    or no longer watch jobs: the log names the cause.
    """
    stop = asyncio.Event()
    _stop_at_signals(stop)
    process = Process(config)
    async with answering(config.health_port, process.state):
        return await process.run(stop)


class Process:
    """One operator process and its state."""

    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
        self._role = "starting"
        self._app: App | None = None
        self._elector: Elector | None = None

    def state(self) -> Mapping[str, Any]:
        """For the health endpoint. A stand-by is ready as well."""
        known = self._app.state() if self._app else {}
        holder = {"leader": self._elector.holder} if self._elector else {}
        return {"role": self._role, "identity": self._identity, **holder, **known}

    async def run(self, stop: asyncio.Event) -> int:
        """See :func:`serve`."""
        lease = self._config.lease
        if lease is None:
            kube = await Kube.connect()
            config = await identified(self._config, kube)
            await kube.close()
            return await self._lead(stop, App(config))
        tenure, terms, heartbeat = Tenure(), Terms(duration=float(self._config.lease_seconds)), Heartbeat()
        async with AsyncExitStack() as undo:
            # A thread and a client of their own: renewals wait for no other call, and for no busy loop.
            thread = LoopThread("lease")
            undo.push_async_callback(thread.close)
            kube = await thread.run(Kube.connect())
            undo.push_async_callback(lambda: thread.run(kube.close()))
            beating = asyncio.create_task(heartbeat.beat(), name="heartbeat")
            undo.callback(beating.cancel)
            self._elector = elector = Elector(
                Leases(kube), lease, self._identity, tenure, terms, silence=heartbeat.silence
            )
            self._role = "standby"
            log.info("standing by", lease=str(lease), identity=self._identity)
            if not await _before(stop, thread.run(elector.acquire())):
                return 0
            keeping = asyncio.create_task(self._keep(thread, elector, heartbeat, stop), name="lease")
            try:
                config = await thread.run(identified(self._config, kube))
                app = App(config, tenure, self._fence(thread, elector, tenure, fence_key(config.owner, lease)))
                code = await self._lead(stop, app)
                lost = keeping.done()
            finally:
                keeping.cancel()
                await asyncio.wait([keeping])
                await thread.run(elector.release())
            if lost:
                keeping.result()  # raises the operator's own faults
            return EXIT_INFRASTRUCTURE if lost else code

    async def _lead(self, stop: asyncio.Event, app: App) -> int:
        """kopf's operator, until ``stop`` is set. Returns the process's exit code.

        kopf does not start without jobs or pods, and ends by an answer that it cannot read, or jobs that are not
        served any more. It then cancels all tasks of this loop, so that the process ends, too.
        """
        self._app, self._role = app, "leader"
        config, registry = self._config, kopf.OperatorRegistry()
        register(registry, app)

        @kopf.on.cleanup(registry=registry, id="flag")  # type: ignore[untyped-decorator]
        async def raise_flag(**_: Any) -> None:
            stop.set()  # at a signal kopf would wait 5 s for its own task that waits for this flag

        working = asyncio.create_task(
            kopf.operator(
                registry=registry,
                standalone=True,
                identity=self._identity,  # kopf's default needs a user name, which a numeric user lacks
                clusterwide=not config.namespaces,
                namespaces=config.namespaces,
                stop_flag=stop,
            ),
            name="kopf",
        )
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        self._role = "stopping"
        done, _ = await asyncio.wait([working], timeout=END_SECONDS)
        if not done:
            log.error("the operator does not end and is killed", seconds=END_SECONDS)
            os._exit(EXIT_INFRASTRUCTURE)
        try:
            await working
        except Exception as error:  # of any class: it is what the API server, or a proxy, has answered
            log.error("the operator ends, to be started again", error=f"{type(error).__name__}: {error}")
            return EXIT_INFRASTRUCTURE
        return 0

    async def _keep(self, thread: LoopThread, elector: Elector, heartbeat: Heartbeat, stop: asyncio.Event) -> None:
        async def keep() -> str:
            why = await elector.keep()
            log.error("no longer leading", why=why)
            if heartbeat.silence() >= STUCK_SECONDS:  # nothing else would end the process
                await elector.release()
                os._exit(EXIT_INFRASTRUCTURE)
            return why

        try:
            await thread.run(keep())
        finally:
            stop.set()

    def _fence(
        self, thread: LoopThread, elector: Elector, tenure: Tenure, key: str
    ) -> Callable[[EtcdClient], FencedEtcd]:
        """Wraps an etcd client so that only the leader can write."""
        seconds = float(self._config.lease_seconds)

        def prove() -> None:
            proof = thread.submit(elector.prove())
            try:
                proof.result(seconds)
            except TimeoutError:
                proof.cancel()
                raise ApiError("prove that this operator leads", 0, "Timeout", f"no answer in {seconds:g} s") from None

        return lambda etcd: FencedEtcd(etcd, key, self._identity, tenure, prove)


async def identified(config: OperatorConfig, kube: Kube) -> OperatorConfig:
    """``config`` with the UID of the namespace kube-system.

    Raises ``ApiError`` if the API server does not give it for a minute.
    """
    trouble = "this cluster is not known yet: allow the operator to get the namespace kube-system"
    return config.model_copy(update={"owner": await answered(kube.cluster_uid, IDENTIFY_SECONDS, trouble)})


async def _before(stop: asyncio.Event, coroutine: Coroutine[Any, Any, None]) -> bool:
    """Whether ``coroutine`` ended before ``stop`` was set; it is cancelled otherwise. Raises what it raises."""
    task, stopping = asyncio.create_task(coroutine), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        await task
        return True
    task.cancel()
    await asyncio.wait([task])
    return False


def _stop_at_signals(stop: asyncio.Event) -> None:
    """Until kopf installs its own handlers."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


T = TypeVar("T")

JOIN_SECONDS = 5.0
HEARTBEAT_SECONDS = 1.0


class LoopThread:
    """The second loop. All methods but :meth:`submit` are called in the main loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``coroutine`` there. May be called in any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of ``coroutine``, which runs there; it is cancelled with the caller."""
        return await asyncio.wrap_future(self.submit(coroutine))

    async def close(self) -> None:
        """End the loop. What still runs there is dropped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, JOIN_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


class Heartbeat:
    """Whether the main loop runs: it beats there, and any thread may ask."""

    def __init__(self) -> None:
        self._beaten = time.monotonic()

    async def beat(self) -> None:
        """Until cancelled."""
        while True:
            self._beaten = time.monotonic()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def silence(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._beaten
