"""The workers granted to one job so far in an allocation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from elastrain_operator.allocation.snapshot import PODS, Job, Share, Worker

WHOLE = 1_000_000_000
"""The cluster's total of a resource. Shares are integer parts of it, so that sums do not depend on their order."""


class Stop(StrEnum):
    """Why a job gets no more: the reason of its condition ``Grown``."""

    AT_MAX = "AtMax"
    NO_ROOM = "NoRoom"
    NO_NODE = "NoNode"
    QUOTA = "QuotaExceeded"
    RECENT = "ResizedRecently"
    VAIN = "NotWorthIt"
    OTHERS_GAIN = "OthersGainMore"
    UNTRIED = "NotYetMeasured"
    NO_GAIN = "NotFaster"
    OTHERS_LEAVE = "OthersLeave"
    MINIMUM = "WaitingForCapacity"
    UNUSED = "GrantUnused"
    NODES = "AwaitsNodes"


@dataclass(slots=True)
class Grant:
    """The workers granted to one job. Mutable; one for each job and allocation."""

    job: Job
    step: int
    """One worker's part of the cluster, in its dominant resource (of ``WHOLE``)."""
    limit: int
    """Most workers that this allocation may grant."""
    placed: int
    """Workers on a node."""
    hold: Stop | None = None
    """Why ``limit`` is below the job's own cap."""
    why: str = ""
    """The same for people, if it is by marginal speed-up."""
    goal: int | None = None
    """Its best size by marginal speed-up; None: sizes are by fair shares."""
    lacks: int = 0
    """Workers of its next stride, for which not enough accelerators are left; 0: a group would do."""
    kept: int = 0
    """Workers on a node that stay."""
    fresh: int = 0
    """Free places, for workers that are not bound or not created yet."""
    waits: int = 0
    """Places that other workers have to leave first."""
    awaits: int = 0
    """Places on nodes that an autoscaler may add: the rest of its minimum."""
    let_in: bool = False
    coming: bool = False
    """Admitted, but its minimum waits for other workers to leave."""
    stop: Stop | None = None
    reached: int = 0
    """Workers that would have fit, if the minimum did not."""
    stays: set[str] = field(default_factory=set)
    """Names of the workers that are kept."""
    goes: set[str] = field(default_factory=set)
    """Names of the workers that have to leave for other jobs."""
    spares_left: int = 0
    """Undecided spares on a node: any worker may take their room; the job does not hold it."""
    holes: int = 0
    """Workers that are missing in groups which stay in any case."""
    parts: set[str] = field(default_factory=set)
    """Groups of which a part exists, without places for the rest."""
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
        """Undecided workers on a node, without spares."""
        return self.placed - len(self.stays) - len(self.goes) - self.spares_left

    @property
    def floor(self) -> int:
        """Its minimum, or what it can use of it."""
        return self.job.min if self.job.usable is None else min(self.job.min, self.job.usable)

    @property
    def level(self) -> int:
        """Amount granted above its minimum."""
        return max(self.granted - self.job.min, 0) * self.step

    @property
    def held_level(self) -> int:
        """The same if it kept all workers that it holds."""
        return max(self.granted + self.loose - self.job.min, 0) * self.step

    @property
    def beyond_goal(self) -> int:
        """Workers that it would hold above its goal if it kept all that it holds."""
        return 0 if self.goal is None else max(self.granted + self.loose - max(self.goal, self.granted), 0)

    def next_loose(self) -> Worker | None:
        """The undecided worker that stays longest."""
        workers = self.job.workers
        while self._at < len(workers):
            worker = workers[self._at]
            if self._loose(worker):
                return worker
            self._at += 1
        return None

    def next_group(self) -> tuple[Worker, ...]:
        """The undecided workers of the group that stays longest: a whole one, else a part; empty: there is none."""
        groups = [g for g in _groups(w for w in self.job.workers if self._loose(w)) if g[0].group not in self.parts]
        return next((g for g in groups if len(g) == self.job.group_size), groups[0] if groups else ())

    def kept_replicas(self) -> list[tuple[Worker, ...]]:
        """Workers that stay, by replica."""
        return _groups(w for w in self.job.workers if w.name in self.stays)

    def spare_replicas(self) -> list[tuple[Worker, ...]]:
        """Undecided spares, by replica."""
        return _groups(w for w in self.job.workers if w.spare and self._loose(w))

    def _loose(self, worker: Worker) -> bool:
        return bool(worker.node) and worker.name not in self.stays and worker.name not in self.goes

    def whole(self, workers: int) -> int:
        """So many workers, without those that make no whole group. A group that stays in part is created anew to a
        whole one."""
        size = self.job.group_size
        if size == 1:
            return workers
        return max(workers // size, len(self.kept_replicas())) * size

    def keep(self, worker: Worker) -> None:
        self.stays.add(worker.name)
        self.kept += 1
        self.spares_left -= worker.spare

    def lose(self, worker: Worker) -> None:
        """The worker has to leave."""
        self.goes.add(worker.name)
        self.spares_left -= worker.spare

    def bounded(self, share: Share, more: int) -> Share:
        """The job's ``share``, without pods for which another job's would be evicted. ``more``: places beyond it."""
        stay = frozenset(w.name for w in self.job.workers if w.node) - share.release
        spares = max(share.spares - sum(w.spare for w in self.job.workers if w.name in stay), 0)
        return replace(share, kept=stay, places=self.fresh + spares + len(share.replace) + more)

    def copy(self) -> Grant:
        return replace(self, stays=set(self.stays), goes=set(self.goes), parts=set(self.parts))

    def restore(self, before: Grant) -> None:
        """Return to the copy ``before``; ``stop`` remains: it is why."""
        again = replace(before.copy(), stop=self.stop)
        for each in fields(Grant):
            setattr(self, each.name, getattr(again, each.name))


def _groups(workers: Iterable[Worker]) -> list[tuple[Worker, ...]]:
    """Workers of one job by group, in their order; a worker without a group is one by itself."""
    found: dict[str, list[Worker]] = {}
    for worker in workers:
        found.setdefault(worker.group or worker.name, []).append(worker)
    return [tuple(group) for group in found.values()]


def _step(job: Job, totals: Mapping[str, int]) -> int:
    """One worker's dominant share. The number of pods per node counts only for workers that request nothing else."""
    requests = [(r, a) for r, a in job.kind.demand if r != PODS] or list(job.kind.demand)
    shares = [a * WHOLE // totals[r] for r, a in requests if totals.get(r, 0) > 0]
    return max(shares, default=0) or 1
