"""The workers granted to one job so far in an allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastrain_operator.allocation.model import PODS, Job, Worker

WHOLE = 1_000_000_000
"""All of a resource in the cluster: shares are whole parts of it, so that sums do not depend on their order."""


class Stop(StrEnum):
    """Why a job gets no more: the reason of its condition ``Grown``."""

    AT_MAX = "AtMax"
    NO_ROOM = "NoRoom"
    NO_NODE = "NoNode"
    QUOTA = "QuotaReached"
    RECENT = "ResizedRecently"
    VAIN = "NotWorthIt"
    OTHERS_LEAVE = "OthersLeave"
    MINIMUM = "MinimumUnavailable"


@dataclass(slots=True)
class Grant:
    """Mutable; one for each job and allocation."""

    job: Job
    step: int
    """What one worker is of the whole cluster, in its dominant resource (of ``WHOLE``)."""
    limit: int
    """Most workers that this allocation may give it."""
    placed: int
    """Workers on a node."""
    hold: Stop | None = None
    """Why ``limit`` is less than the job's own cap."""
    kept: int = 0
    """Workers on a node that stay."""
    fresh: int = 0
    """Places that are free at this moment, for workers that are not bound yet or still to be made."""
    waits: int = 0
    """Places that others have to leave first."""
    let_in: bool = False
    coming: bool = False
    """Let in, but its minimum waits for others to leave."""
    stop: Stop | None = None
    reached: int = 0
    """For how many workers there would have been room, where the minimum could not be had."""
    stays: set[str] = field(default_factory=set)
    """Names of the workers that are kept."""
    goes: set[str] = field(default_factory=set)
    """Names of the workers that have to leave for others."""
    spares_left: int = 0
    """Spares on a node about which nothing is decided: room for any worker, not held by the job."""
    _at: int = 0

    @classmethod
    def of(cls, job: Job, totals: Mapping[str, int]) -> Grant:
        placed = sum(1 for w in job.workers if w.node)
        spares = sum(1 for w in job.workers if w.node and w.spare)
        return cls(job, _step(job, totals), limit=job.cap, placed=placed, spares_left=spares)

    @property
    def granted(self) -> int:
        return self.kept + self.fresh + self.waits

    @property
    def loose(self) -> int:
        """Workers on a node about which nothing is decided, spares left out."""
        return self.placed - len(self.stays) - len(self.goes) - self.spares_left

    @property
    def level(self) -> int:
        """What it has been granted above its minimum."""
        return max(self.granted - self.job.min, 0) * self.step

    @property
    def held_level(self) -> int:
        """The same if it kept everything that it has."""
        return max(self.granted + self.loose - self.job.min, 0) * self.step

    def next_loose(self) -> Worker | None:
        """The one that stays longest among the workers about which nothing is decided."""
        workers = self.job.workers
        while self._at < len(workers):
            worker = workers[self._at]
            if worker.node and worker.name not in self.stays and worker.name not in self.goes:
                return worker
            self._at += 1
        return None

    def keep(self, worker: Worker) -> None:
        self.stays.add(worker.name)
        self.kept += 1
        self.spares_left -= worker.spare

    def lose(self, worker: Worker) -> None:
        """It has to leave."""
        self.goes.add(worker.name)
        self.spares_left -= worker.spare

    def copy(self) -> Grant:
        return replace(self, stays=set(self.stays), goes=set(self.goes))

    def restore(self, before: Grant) -> None:
        """Be again what it was when it was copied."""
        self.kept, self.fresh, self.waits, self._at = before.kept, before.fresh, before.waits, before._at
        self.stays, self.goes = set(before.stays), set(before.goes)
        self.spares_left = before.spares_left


def _step(job: Job, totals: Mapping[str, int]) -> int:
    """How many pods a node takes counts only for workers that ask for nothing else."""
    asked = [(r, a) for r, a in job.kind.demand if r != PODS] or list(job.kind.demand)
    shares = [a * WHOLE // totals[r] for r, a in asked if totals.get(r, 0) > 0]
    return max(shares, default=0) or 1
