"""Grants workers one replica after another, all or nothing. Mutable, used for one allocation.

A replica is a worker, or a group of several. Of a group, existing workers stay and the missing ones get places; if
there are not enough, nothing of the room is taken. No group loses a part: it is displaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from elastrain_operator.allocation.fair import Tier
from elastrain_operator.allocation.grant import Grant, Stop
from elastrain_operator.allocation.quotas import Quotas
from elastrain_operator.allocation.room import May, Room
from elastrain_operator.allocation.snapshot import Amounts, Job, Worker, WorkerShape


@dataclass(slots=True)
class _Attempt:
    """What an attempt has to undo if it fails."""

    grants: dict[str, Grant]
    """By UID, as they were."""
    lost: list[Grant] = field(default_factory=list)
    """For each worker that the tier has lost, its job's grant."""


class Granting:
    """The grants of all jobs, and the room and the quotas that they use."""

    def __init__(self, room: Room, quotas: Quotas, grants: Mapping[str, Grant]) -> None:
        """``grants``: by UID."""
        self._room, self._quotas, self._grants = room, quotas, grants
        self._attempts: list[_Attempt] = []
        self.tier: Tier | None = None
        """The jobs between which the room is divided now."""
        self.refused: dict[str, str] = {}
        """UID → why the quota refused the job's next worker."""

    def attempt(self, grant: Grant, take: Callable[[Grant], bool]) -> bool:
        """``take`` for a job; all of it is undone if it returns False. An attempt may be part of another one."""
        made = _Attempt({grant.job.uid: grant.copy()})
        used = self._quotas.copy_of(grant.job)
        self._room.begin()
        self._attempts.append(made)
        done = take(grant)
        self._attempts.pop()
        if done:
            self._room.commit()
            if self._attempts:
                outer = self._attempts[-1]
                outer.grants = made.grants | outer.grants
                outer.lost += made.lost
            return True
        self._room.rollback()
        for uid, before in made.grants.items():
            self._grants[uid].restore(before)
        self._quotas.restore(grant.job, used)
        for other in made.lost:
            assert self.tier is not None, "a tier's attempts end before the tier"
            self.tier.lost(other, -1)
        return False

    # ---- replicas ----------------------------------------------------------------------------------------------------
    def grant(self, grant: Grant, may: May | None) -> bool:
        """One more replica. Existing workers stay, others get free places, else the places of workers that leave for
        them."""
        size = grant.job.group_size
        if size == 1:
            return self.grant_worker(grant, may)
        if grant.holes:  # of a group that stays in any case
            filled = self._new(grant, may)
            grant.holes -= filled
            return filled
        if not self._within_quota(grant, grant.job.kind.demand, size):
            return False
        while replica := grant.next_group():
            if self.attempt(grant, lambda g, replica=replica: self._complete(g, replica, may)):  # type: ignore[misc]
                return True
            grant.parts.add(replica[0].group)
        return self.attempt(grant, lambda g: self._complete(g, (), may))

    def _complete(self, grant: Grant, replica: Sequence[Worker], may: May | None) -> bool:
        """A group of which ``replica`` exist."""
        missing = grant.job.group_size - len(replica)
        return all(self._keep(grant, w) for w in replica) and all(self._new(grant, may) for _ in range(missing))

    def keep(self, grant: Grant, *, bounded: bool = True) -> bool:
        """The replica that stays longest; False: there is none, or no whole one. Unless ``bounded``, no quota binds,
        and a group stays without its missing workers."""
        if grant.job.group_size == 1:
            worker = grant.next_loose()
            return worker is not None and self._keep(grant, worker, bounded=bounded)
        replica = grant.next_group()
        holes = grant.job.group_size - len(replica)
        if not replica or (bounded and holes):
            return False
        if not self.attempt(grant, lambda g: all(self._keep(g, w, bounded=bounded) for w in replica)):
            return False
        grant.holes += holes
        return True

    def fill_up(self, grant: Grant) -> None:
        """Room for a part of the next group, whose other workers wait for nodes that an autoscaler may add."""
        replica = grant.next_group() if not grant.holes else ()
        for _ in range(grant.job.group_size - len(replica)):
            if not self._room.place(grant.job.kind, at_once=True):
                break

    def use_quota(self, grant: Grant, workers: int) -> bool:
        """Count so many workers that wait for nodes; False: the quota does not permit all of them."""
        permitted = self._within_quota(grant, grant.job.kind.demand, workers) and self._is_admitted(grant, workers)
        if permitted:
            self._quotas.use(grant.job.namespace, grant.job.kind.demand, workers)
            self._quotas.charge(grant.job, grant.granted, workers)
        return permitted

    def places(self, job: Job, workers: int) -> bool:
        """Take free room for so many workers at once; False: there is not enough."""
        self._room.begin()
        if all(self._room.place(job.kind) for _ in range(workers)):
            self._room.commit()
            return True
        self._room.rollback()
        return False

    # ---- workers -----------------------------------------------------------------------------------------------------
    def grant_worker(self, grant: Grant, may: May | None, *, at_once: bool = False) -> bool:
        """One more worker, whatever its group (``at_once``: never in the place of others)."""
        worker = grant.next_loose()
        return self._new(grant, may, at_once=at_once) if worker is None else self._keep(grant, worker)

    def _keep(self, grant: Grant, worker: Worker, *, bounded: bool = True) -> bool:
        if bounded and not self._within_quota(grant, worker.demand):
            return False
        grant.keep(worker)
        self._room.keep(worker, grant.job.uid)
        self._quotas.use(grant.job.namespace, worker.demand)
        return True

    def _new(self, grant: Grant, may: May | None, *, at_once: bool = False) -> bool:
        """A free place, else the place of workers that leave for it: never for a job of which no pod was admitted."""
        demand = grant.job.kind.demand
        if not self._within_quota(grant, demand) or not self._is_admitted(grant):
            return False
        before = grant.granted
        asks = grant.job.admitted and not grant.job.barred and (may is not None or self._room.has_spares)
        if self._room.place(grant.job.kind, at_once=at_once):
            grant.fresh += 1
        elif asks and not at_once and self.displace(grant.job.kind, may):
            grant.waits += 1
        else:
            grant.stop = Stop.NO_ROOM
            return False
        self._quotas.use(grant.job.namespace, demand)
        self._quotas.charge(grant.job, before)
        return True

    def displace(self, kind: WorkerShape, may: May | None) -> bool:
        """Displace spares, or if that is not enough, workers that ``may`` be displaced."""
        freed = self._room.give_back(kind, self._rank) if self._room.has_spares else None
        if freed is None and may is not None:
            freed = self._room.displace(kind, may, self._rank)
        for loose in freed or ():
            other = self._grants[loose.uid]
            if self._attempts:
                self._attempts[-1].grants.setdefault(loose.uid, other.copy())
            other.lose(loose.worker)
            if self.tier is not None and not loose.worker.spare:
                self.tier.lost(other)
                if self._attempts:
                    self._attempts[-1].lost.append(other)
        return freed is not None

    def _rank(self, uid: str) -> tuple[int, ...]:
        """The lowest priority first; within a priority, the job that holds the most, beyond its goal if it has one."""
        grant = self._grants[uid]
        return (grant.job.priority, -grant.beyond_goal * grant.step, -grant.held_level)

    def _within_quota(self, grant: Grant, demand: Amounts, times: int = 1) -> bool:
        refused = self._quotas.refusal(grant.job.namespace, demand, times)
        if refused is not None:
            grant.stop = Stop.QUOTA
            self.refused[grant.job.uid] = refused
        return refused is None

    def _is_admitted(self, grant: Grant, workers: int = 1) -> bool:
        """Whether ResourceQuotas admit so many pods more; pods of a minimum of which one is refused do not start."""
        refused = self._quotas.shortage(grant.job, grant.granted, workers)
        if refused is not None:
            grant.stop = Stop.QUOTA
            self.refused[grant.job.uid] = refused
        return refused is None
