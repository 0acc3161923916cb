"""Removes the etcd records of jobs that are gone. Acts only on what the API server says, never on what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdError
from elastrain_operator.coordination import Mirror
from elastrain_operator.kube import ApiError, Kube

INTERVAL = 60.0
"""Seconds between two looks at all records; what was deleted is looked at when that is heard."""

log = structlog.get_logger(__name__)


class Sweeper:
    """Looks for records whose job the API server does not have any more."""

    def __init__(self, kube: Kube, mirror: Mirror, is_served: Callable[[JobKeys], bool]) -> None:
        """``is_served``: whether a job has a loop, or pods that still exist, and so is certainly not to be swept."""
        self._kube = kube
        self._mirror = mirror
        self._is_served = is_served
        self._nudged = asyncio.Event()
        self._named: set[JobKeys] = set()

    def nudge(self, job: JobKeys) -> None:
        """This job, or a pod of it, was deleted: look now. (Not at all jobs: with many that would be the work of each
        deletion.)"""
        self._named.add(job)
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if loop.time() >= due:
                await self.sweep(self._mirror.jobs())
                due = loop.time() + INTERVAL
            try:
                await asyncio.wait_for(self._nudged.wait(), due - loop.time())
            except TimeoutError:
                continue
            self._nudged.clear()
            named, self._named = self._named, set()
            await self.sweep(keys for keys in named if self._mirror.is_ours(keys))

    async def sweep(self, jobs: Iterable[JobKeys]) -> None:
        """One look at jobs that have records of ours. A call that fails leaves its records for the next look."""
        if self._mirror.outage:
            return
        for keys in jobs:
            if not self._is_served(keys):
                await _logged(keys, self._sweep_one)

    async def _sweep_one(self, keys: JobKeys) -> None:
        body = await self._kube.get_job(keys.namespace, keys.job)
        if body is None or body["metadata"]["uid"] != keys.uid:
            await self._mirror.delete_records(keys)
            log.info("deleted records", prefix=keys.prefix, why="the job is gone")


async def _logged(keys: JobKeys, call: Callable[[JobKeys], Awaitable[None]]) -> None:
    try:
        await call(keys)
    except (ApiError, EtcdError) as error:
        log.warning("records not swept", prefix=keys.prefix, error=str(error))
