"""An operator process: the product's election, loops, mirror, fence and executor on simulated etcd and API server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from elastrain.api.keys import JobKeys
from elastrain.etcd import Batch, EtcdConfig, EtcdUnavailable, KeyValue, Range, Transaction, WatchState
from elastrain.etcd.errors import LeaseLost
from elastrain_operator.allocation.snapshot import Node, Policy, Taint
from elastrain_operator.cluster import nodes
from elastrain_operator.cluster.capacity import Capacity
from elastrain_operator.cluster.inventory import node_at
from elastrain_operator.cluster.nodes import NodeFacts
from elastrain_operator.config import LeaseName, OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef, Pod
from elastrain_operator.job.executor import Executor
from elastrain_operator.job.loop import JobLoop
from elastrain_operator.job.loops import Loops
from elastrain_operator.job.recorder import Recorder
from elastrain_operator.kube.access import Tenure
from elastrain_operator.kube.client import ApiError, NotLeading, jobs_path
from elastrain_operator.leader.election import Elector
from elastrain_operator.leader.fencing import FencedEtcd, fence_key
from elastrain_operator.leader.lease import Terms
from elastrain_operator.records.mirror import Mirror
from elastrain_operator.records.sweep import Sweeper
from elastrain_operator.watch.jobs import Jobs
from elastrain_operator.watch.pods import WorkerPods
from sim import apiserver, etcd
from sim.etcd import Etcd
from sim.etcd_client import Client, WatchKeeper
from sim.kube import Kube
from sim.loop import Loop
from sim.network import Refused
from sim.process import Process

if TYPE_CHECKING:
    from sim.world import World

TERMS = Terms()
FOREVER = 1e6
"""Seconds."""


@dataclass(frozen=True)
class Installation:
    """What the replicas of one release have in common."""

    etcd: Etcd
    name: str = "etcd"

    @property
    def lease(self) -> LeaseName:
        return LeaseName(namespace=f"elastrain-{self.name}", name=f"operator-{self.name}")

    @property
    def fence(self) -> str:
        return fence_key("sim", self.lease)

    @property
    def config(self) -> OperatorConfig:
        endpoint = f"{self.name}:2379"
        return OperatorConfig(
            etcd=EtcdConfig.of(endpoint), worker_etcd=WorkerEtcd(endpoints=endpoint), lease=self.lease,
            resync=60.0,
        )  # fmt: skip


class Operator:
    """One replica: it stands by, leads, and is started anew when it leads no more."""

    def __init__(self, world: World, place: str, installation: Installation) -> None:
        self.world, self.place, self.installation = world, place, installation
        self.starts = 0
        self.start()

    def start(self) -> None:
        """As a new process."""
        self.starts += 1
        world = self.world
        self.process = Process(world.clock, f"{self.place}.{self.starts}", self.place)
        self.loop = Loop(self.process, world.network.delay, world.note_fault)
        self.leads = False
        self._capacity: Capacity | None = None
        self.loop.run(lambda: self.loop.create_task(self._main()))

    def kill(self, restart_after: float) -> None:
        self.process.die()
        self.leads = False
        self.world.clock.after(restart_after, self.start)

    def nodes_changed(self) -> None:
        if self._capacity is not None:
            self.loop.run(self._capacity.nudge)

    # ---- as elastrain_operator.__main__ and app put it together ------------------------------------------------------
    async def _main(self) -> None:
        world, process = self.world, self.process
        seconds = self.loop.seconds
        tenure = Tenure(seconds)
        identity = process.name
        lease_kube = Kube(world.api, world.network, process, self.loop, None)
        elector = Elector(lease_kube, self.installation.lease, identity, tenure, TERMS, clock=seconds)
        await elector.acquire()
        self.leads = True
        self._serve(tenure, identity)
        await elector.keep()
        self.kill(world.rng.uniform(1.0, 3.0))

    def _serve(self, tenure: Tenure, identity: str) -> None:
        world, process, loop = self.world, self.process, self.loop
        kube = Kube(world.api, world.network, process, loop, tenure, world.watch_lag)
        config, lease = self.installation.config, self.installation.lease

        def prove() -> None:
            if world.network.is_cut(self.place, apiserver.PLACE) or not world.api.up:
                raise ApiError("prove", 0, "Unreachable", "no answer")
            held = world.api.objects["leases"].get(lease.name)
            if held is None or held["spec"]["holderIdentity"] != identity:
                raise NotLeading("prove that this operator leads")

        fenced = FencedEtcd(EtcdCalls(self), self.installation.fence, identity, tenure, prove)  # type: ignore[arg-type]
        pods = WorkerPods(
            kube,  # type: ignore[arg-type]
            config.namespaces,
            self._pod_event,
            lambda uid, held: self._capacity and self._capacity.other_pod_seen(uid, held),
        )
        jobs = Jobs(
            kube,  # type: ignore[arg-type]
            config.namespaces,
            config.resync,
            known=lambda: self._loops.jobs(),
            has_pods_of=pods.has,
            on_job=lambda body: self._loops.see(body, pods.of),
            on_deleted=self._job_gone,
        )
        pods.on_listed = jobs.pods_listed
        mirror = Mirror(fenced, "sim", self._etcd_changed, lambda keys: self._loops.wake_later(keys.uid))
        if world.room:
            self._capacity = Capacity(Policy(hysteresis=5.0), lambda uid: self._loops.wake(uid))
            loop.create_task(self._capacity.run(Inventory(world)))
        recorder = Recorder(kube)
        loop.create_task(recorder.run())
        executor = Executor(kube, mirror, config, recorder)  # type: ignore[arg-type]

        def make(job: JobRef) -> JobLoop:
            return JobLoop(job, executor, kube, mirror, config, self._capacity)  # type: ignore[arg-type]

        self._loops = Loops(make)
        self._sweeper = Sweeper(
            kube,  # type: ignore[arg-type]
            mirror,
            lambda keys: keys.uid in self._loops or bool(pods.of(keys)),
        )
        mirror.start()

        async def start() -> None:
            await mirror.wait_listed(5.0)
            loop.create_task(pods.run())
            await pods.listed(FOREVER)
            loop.create_task(self._sweeper.run())
            loop.create_task(jobs.run())
            await kube.watch_as_kopf(jobs_path(""), "jobs", jobs.event)

        loop.create_task(start())

    def _etcd_changed(self, keys: JobKeys | None) -> None:
        if keys is None:
            self._loops.wake_all()
        else:
            self._loops.wake(keys.uid)

    def _job_gone(self, job: JobKeys) -> None:
        async def forget() -> None:
            await self._loops.forget(job.uid)
            if self._capacity:
                self._capacity.forget(job.uid)
            self._sweeper.nudge(job)

        self.loop.create_task(forget())

    def _pod_event(self, job: JobKeys, pod: Pod, gone: bool) -> None:
        if self._capacity:
            holder = "" if self._loops.is_another(job) else job.uid
            self._capacity.pod_seen(holder, None if gone else pod, pod.uid)
        if gone:
            self._loops.pod_deleted(job, pod)
            self._sweeper.nudge(job)
        else:
            self._loops.pod_seen(job, pod)


class Inventory:
    """The cluster, as an operator that shares it out sees it."""

    problem, denied, looks = None, False, False

    def __init__(self, world: World) -> None:
        self._world = world
        self._closed: dict[str, dict[nodes.Cause, datetime]] = {}

    def nodes(self, now: datetime) -> tuple[Node, ...]:
        facts = [self._facts(name) for name in sorted(self._world.nodes)]
        self._closed = {f.name: nodes.update(self._closed.get(f.name, {}), f, now) for f in facts}
        return tuple(node_at(f, {}, self._closed[f.name], now) for f in facts)

    def _facts(self, name: str) -> NodeFacts:
        world = self._world
        taints = (Taint("node.kubernetes.io/memory-pressure"),) if name in world.pressed else ()
        room = {"cpu": 1000 * world.room, "pods": 100}
        return NodeFacts(name, room, {}, taints, name not in world.silent, name in world.cordoned, "")

    def next_change(self, now: datetime) -> float | None:
        return nodes.next_change(self._closed.values(), now)

    def quotas(self, _namespace: str) -> tuple[()]:
        return ()

    def priority(self, name: str) -> int:
        return 0

    def preempts(self, name: str) -> bool:
        return True


class EtcdCalls:
    """etcd's calls, made from threads of the operator: at once, see :meth:`sim.loop.Loop.run_in_executor`."""

    timeout = 5.0

    def __init__(self, operator: Operator) -> None:
        self._operator, self._world = operator, operator.world
        self._etcd, self._fence = operator.installation.etcd, operator.installation.fence

    def get(self, key: str) -> KeyValue | None:
        return self._call("read", lambda: self._etcd.get(key))

    def commit(self, transaction: Transaction, what: str, *, timeout: float | None = None) -> bool:
        done = bool(self._call(what, lambda: self._etcd.commit(transaction)))
        if done:
            fence = any(key == self._fence for key, _ in transaction.puts)
            self._world.ledger.operator_wrote(self._operator.process.name, fence)
        return done

    def compare_and_swap(self, key: str, value: bytes, *, expected_mod_revision: int) -> tuple[bool, KeyValue | None]:
        won = self.commit(Transaction(((key, expected_mod_revision),), ((key, value),)), "swap")
        return won, self.get(key)

    def end_lease(self, lease: int) -> None:
        with suppress(LeaseLost):
            self._call("end a lease", lambda: self._etcd.revoke(lease))

    def watch_prefix(
        self,
        prefix: str,
        on_events: Callable[[Batch], None],
        on_state: Callable[[WatchState], None] | None = None,
        sift: object = None,
    ) -> WatchKeeper:
        client = Client(self._operator.process, self._world.network, self._etcd)

        def state(connected: bool, error: Exception | None) -> None:
            if on_state is not None:
                on_state(WatchState(connected, error))  # type: ignore[arg-type]

        return WatchKeeper(client, (Range.prefix(prefix),), on_events, state, self._world.watch_lag)

    def _call(self, what: str, request: Callable[[], Any]) -> Any:
        if self._world.network.is_cut(self._operator.place, etcd.PLACE):
            raise EtcdUnavailable("etcd:2379", what, "no answer")
        try:
            return request()
        except Refused as error:
            raise EtcdUnavailable("etcd:2379", what, str(error)) from None
