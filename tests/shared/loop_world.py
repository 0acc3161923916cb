"""A loop per job, in a separate event loop, with one object as API server and etcd."""

from __future__ import annotations

import asyncio

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdConfig
from elastrain_operator import clock
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import Coordination, Outage
from elastrain_operator.job.executor import Executor
from elastrain_operator.job.loop import JobLoop
from elastrain_operator.job.loops import Loops
from elastrain_operator.kube.client import ApiError
from raw_cluster import TEMPLATE

JOB = JobKeys("ns", "job", "uid")
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))


class World:
    """API server and etcd in one; ``watched`` is what the watch has shown so far."""

    def __init__(self) -> None:
        self.down = False
        """Neither of the two answers."""
        self.pods: dict[str, dict] = {}
        self.watched: list = []
        self.statuses: list[dict] = []
        self.failures: list[Exception] = []
        self.target = None

    def outage_of(self, keys):
        return Outage() if self.down else None

    def of(self, keys):
        return None if self.down else Coordination(target=self.target)

    def _answer(self) -> None:
        if self.down:
            raise ApiError("reach it", 0, "Unreachable", "connection refused")

    async def put_target(self, keys, target):
        self._answer()
        self.target = target

    async def adopt(self, keys):
        """All records are this cluster's."""

    async def patch_status(self, namespace, name, status, version=None):
        self._answer()
        if self.failures:
            raise self.failures.pop()
        self.statuses.append(status)

    def record(self, job, event):
        """Events are sent beside the passes."""

    async def apply(self, path, manifest):
        self._answer()
        return f"uid-{manifest['metadata']['name']}"

    async def list_pages(self, path, what, query):
        self._answer()
        yield [], ""

    async def create_pod(self, namespace, manifest):
        self._answer()
        name = manifest["metadata"]["name"]
        meta = {**manifest["metadata"], "uid": f"uid-{name}", "resourceVersion": "1"}
        meta["creationTimestamp"] = clock.now().isoformat()
        self.pods[name] = {**manifest, "metadata": meta}
        return self.pods[name]

    async def get_pod(self, namespace, name):
        self._answer()
        return self.pods.get(name)

    async def delete_pod(self, namespace, name, uid, version=None):
        self._answer()
        self.pods.pop(name, None)


def body(**spec) -> dict:
    meta = {"namespace": "ns", "name": "job", "uid": "uid", "generation": 1}
    return {"metadata": meta, "spec": {"maxReplicas": 2, "template": TEMPLATE, **spec}}


def named(name: str) -> dict:
    job = body()
    job["metadata"] = {**job["metadata"], "name": name, "uid": name}
    return job


def run(scenario, world: World | None = None) -> None:
    """Run ``scenario(world, jobs)`` in an event loop."""
    world = world or World()

    async def main():
        executor = Executor(world, world, CONFIG, world)
        jobs = Loops(lambda job: JobLoop(job, executor, world, world, CONFIG))
        try:
            await asyncio.wait_for(scenario(world, jobs), 20)
        finally:
            await jobs.stop()

    asyncio.run(main())
