"""Removes the etcd records of jobs that are gone. Acts only on what the API server says, never on what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdError
from elastrain_operator.coordination import Mirror
from elastrain_operator.kube import ApiError, Kube

INTERVAL = 60.0
"""Seconds between two looks."""

log = structlog.get_logger(__name__)


class Sweeper:
    """Looks for records whose job the API server does not have any more."""

    def __init__(self, kube: Kube, mirror: Mirror, is_served: Callable[[JobKeys], bool]) -> None:
        """``is_served``: whether a job has a loop, or pods that still exist, and so is certainly not to be swept."""
        self._kube = kube
        self._mirror = mirror
        self._is_served = is_served
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """A job was deleted: look now."""
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.sweep()
            try:
                await asyncio.wait_for(self._nudged.wait(), INTERVAL)
            except TimeoutError:
                continue
            self._nudged.clear()

    async def sweep(self) -> None:
        """One look. A call that fails leaves its records for the next one."""
        if self._mirror.outage:
            return
        for keys in self._mirror.jobs():
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
