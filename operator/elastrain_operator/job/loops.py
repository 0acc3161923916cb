"""The loops of all jobs: each event goes to the loop of its job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from elastrain.api.keys import JobKeys
from elastrain_operator.facts import JobRef, Pod
from elastrain_operator.job.loop import JobLoop, PodsOf
from elastrain_operator.job.meter import JobMeter
from elastrain_operator.job.plan import STATUS_INTERVAL
from elastrain_operator.watch import parse

STATUS_SHARE = 0.05
"""Seconds that each job adds to the interval at which new steps alone are written to the status: all jobs together
write at most 20 times per second for this reason."""


class Loops:
    """The loops of all jobs, by UID."""

    def __init__(self, make: Callable[[JobRef], JobLoop]) -> None:
        self._make = make
        self._loops: dict[str, JobLoop] = {}

    def __len__(self) -> int:
        return len(self._loops)

    def __contains__(self, uid: object) -> bool:
        return uid in self._loops

    def jobs(self) -> dict[str, JobKeys]:
        """The jobs that have a loop, by UID."""
        return {uid: loop.keys for uid, loop in self._loops.items()}

    @property
    def unplanned(self) -> int:
        """Jobs for which no pass has succeeded yet, as after a restart."""
        return sum(not loop.planned for loop in self._loops.values())

    def see(self, body: Mapping[str, Any], pods_of: PodsOf) -> None:
        """A job was added or changed."""
        job = parse.job_ref(body)
        if job.uid not in self._loops:
            self._loops[job.uid] = self._make(job)
        loop = self._loops[job.uid]
        loop.status_interval = max(STATUS_INTERVAL, STATUS_SHARE * len(self))
        loop.see(body, pods_of)

    async def forget(self, uid: str) -> None:
        """A job is gone."""
        loop = self._loops.pop(uid, None)
        if loop:
            await loop.stop()

    def meters(self) -> list[JobMeter]:
        """The loops' last observations, for a scrape; called from its thread."""
        return [loop.meter for loop in list(self._loops.values())]

    def wake(self, uid: str) -> None:
        if uid in self._loops:
            self._loops[uid].wake()

    def wake_later(self, uid: str) -> None:
        if uid in self._loops:
            self._loops[uid].wake_later()

    def wake_all(self) -> None:
        for loop in self._loops.values():
            loop.wake()

    def is_another(self, job: JobKeys) -> bool:
        """Whether the UID is that of a job of another namespace or name: such a reference to it has no force."""
        loop = self._loops.get(job.uid)
        return loop is not None and loop.keys != job

    def pod_seen(self, job: JobKeys, pod: Pod) -> None:
        if job.uid in self._loops and not self.is_another(job):
            self._loops[job.uid].pod_seen(pod)

    def pod_deleted(self, job: JobKeys, pod: Pod) -> None:
        if job.uid in self._loops and not self.is_another(job):
            self._loops[job.uid].pod_deleted(pod)

    async def stop(self) -> None:
        """End all loops."""
        await asyncio.gather(*(loop.stop() for loop in self._loops.values()))
        self._loops.clear()
