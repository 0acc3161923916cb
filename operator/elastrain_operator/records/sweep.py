"""Removes the etcd records and users of jobs that are gone. Acts only on an answer of the API server, never on missing
information."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdError
from elastrain_operator.kube.client import ApiError, Kube
from elastrain_operator.records.logins import JobLogins
from elastrain_operator.records.mirror import Mirror
from elastrain_operator.waiting import until

INTERVAL = 60.0
"""Seconds between two sweeps of all records; the records of a deleted job are swept at its deletion event."""
LATE_WRITES = 6.0
"""Seconds after which a write to etcd has either succeeded or failed."""

log = structlog.get_logger(__name__)


class Sweeper:
    """Searches for records whose job no longer exists in the API server."""

    def __init__(
        self, kube: Kube, mirror: Mirror, is_served: Callable[[JobKeys], bool], logins: JobLogins | None = None
    ) -> None:
        """``is_served``: whether a job has a loop or existing pods, and is therefore not swept.
        ``logins``: None if jobs have no etcd users."""
        self._kube = kube
        self._mirror = mirror
        self._is_served = is_served
        self._logins = logins
        self._nudged = asyncio.Event()
        self._named: set[JobKeys] = set()

    def nudge(self, job: JobKeys) -> None:
        """This job or a pod of it was deleted: check the job now, and again when writes to etcd that were in flight at
        the deletion have arrived."""
        self._name(job)
        asyncio.get_running_loop().call_later(LATE_WRITES, self._name, job)

    def _name(self, job: JobKeys) -> None:
        self._named.add(job)
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if loop.time() >= due:
                await self.sweep()
                due = loop.time() + INTERVAL
            if not await until(self._nudged, due - loop.time()):
                continue
            self._nudged.clear()
            named, self._named = self._named, set()
            if not self._mirror.outage:
                await self._look(keys for keys in named if self._mirror.is_ours(keys))

    async def sweep(self) -> None:
        """Check all jobs with records of this cluster. A failed call leaves them for the next sweep."""
        if not self._mirror.outage:
            await self._look({*self._mirror.jobs()})

    async def _look(self, jobs: Iterable[JobKeys]) -> None:
        for keys in jobs:
            if not self._is_served(keys):
                await _logged(keys, self._sweep_one)

    async def _sweep_one(self, keys: JobKeys) -> None:
        body = await self._kube.get_job(keys.namespace, keys.job)
        if body is None or body["metadata"]["uid"] != keys.uid:
            if self._logins is not None:
                await self._logins.remove(keys)  # first, since the records lead here
            await self._mirror.delete_records(keys)
            log.info("deleted records", prefix=keys.prefix, why="the job is gone")


async def _logged(keys: JobKeys, call: Callable[[JobKeys], Awaitable[None]]) -> None:
    try:
        await call(keys)
    except (ApiError, EtcdError) as error:
        log.warning("records not swept", prefix=keys.prefix, error=str(error))
