"""Shares the cluster's accelerators between jobs. Pure: same snapshot, same answer, and nothing happens here.

The rules, in the order in which workers are granted (docs/capacity.md has a worked example):

1. A job that trains keeps its workers up to ``minReplicas``, whatever happens. Nobody is preempted below its minimum.
2. Jobs below their minimum get it, by priority, then by age: all of it or nothing, so that nobody holds accelerators
   without training. They may take what others, of any priority, hold above their minima. One that does not fit lets
   those behind it pass.
3. What is left goes to the highest priority first, which may take from lower ones what they hold above their minima; in
   one priority to jobs with a fixed ``replicas``, by age, and then to elastic ones in fair shares (``fair.py``).

A mere improvement has to be worth its price: an elastic job that was resized a moment ago is left alone (hysteresis),
and grows only if the expected gain beats its own measured pause (``worth.py``). Neither holds up rule 2 nor a higher
priority. Where others have to leave first, room is promised and given when they have left; until then a job's size is
what fits at this moment.

Warm spares stand by in what is left after all that: whoever needs their room gets it, before any worker has to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from elastrain_operator.allocation import explanations, worth
from elastrain_operator.allocation.fair import Tier
from elastrain_operator.allocation.grant import Seat, Stop
from elastrain_operator.allocation.match import lets_go
from elastrain_operator.allocation.model import Allocation, Amounts, Job, Kind, Place, Policy, Share, Snapshot
from elastrain_operator.allocation.room import Idle, May, Room
from elastrain_operator.allocation.worth import Worth

ROUNDS = 4
"""How often at most the sharing is repeated because what some jobs were given would not pay for them."""


def allocate(snapshot: Snapshot, policy: Policy, now: datetime) -> Allocation:
    """What each job should have now. Executed by each job's own plan; ``now`` is timezone-aware."""
    vain: dict[str, str] = {}
    looks = 0
    for _ in range(ROUNDS):
        sharing = _Sharing(snapshot, policy, now, vain)
        sharing.run()
        looks += sharing.room.looks
        fresh = sharing.not_worth_it()
        if not fresh:
            break
        vain |= fresh
    return Allocation(sharing.answer(fresh), sharing.again(), looks)


class _Sharing:
    """One way through the rules."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: datetime, vain: dict[str, str]) -> None:
        self.room = Room(snapshot)
        self._snapshot = snapshot
        self._policy = policy
        self._now = now
        self._vain = vain
        totals: dict[str, int] = {}
        for node in snapshot.nodes:
            for resource, amount in node.room.items():
                totals[resource] = totals.get(resource, 0) + max(amount, 0)
        self._seats = {job.uid: self._seat(job, totals) for job in snapshot.jobs}
        self._queue = sorted(self._seats.values(), key=_order)
        self._used: dict[str, dict[str, int]] = {namespace: {} for namespace in policy.quotas}
        self._tier: Tier | None = None
        self._saved: dict[str, Seat] | None = None
        self._refused: dict[str, str] = {}  # why the quota refused a job's next worker
        self._idle: dict[Kind, Idle] = {}
        self._troubled: dict[Place, tuple[frozenset[str], frozenset[str]]] = {}

    def _seat(self, job: Job, totals: dict[str, int]) -> Seat:
        seat = Seat.of(job, totals)
        if job.elastic and job.size:
            recent = worth.thaws(job, self._policy, self._now) is not None
            if job.uid in self._vain or recent:
                seat.limit = min(job.cap, max(job.size, job.min))
                seat.hold = Stop.VAIN if job.uid in self._vain else Stop.RECENT
        return seat

    def run(self) -> None:
        self._keep_minima()
        self._let_in()
        for priority in sorted({s.job.priority for s in self._queue}, reverse=True):
            self._share_out([s for s in self._queue if s.job.priority == priority and s.let_in and not s.coming])

    # ---- rule 1 ------------------------------------------------------------------------------------------------------
    def _keep_minima(self) -> None:
        for seat in self._queue:
            if seat.job.trains:
                seat.let_in = True
                while seat.kept < seat.job.min and self._keep(seat, bounded=False):
                    pass

    # ---- rule 2 ------------------------------------------------------------------------------------------------------
    def _let_in(self) -> None:
        failed: dict[Kind, tuple[int, int]] = {}
        for seat in self._queue:
            if seat.job.trains:
                while seat.granted < seat.job.min and self._grant(seat, _anybody_but(seat)):
                    pass
                continue
            least, reached = failed.get(seat.job.kind, (seat.job.min + 1, 0))
            if seat.job.min >= least and not seat.placed:
                seat.stop, seat.reached = Stop.MINIMUM, reached  # room has only become less since
            elif not self._try_minimum(seat) and seat.stop is not Stop.QUOTA:
                failed[seat.job.kind] = (min(least, seat.job.min), seat.reached)

    def _try_minimum(self, seat: Seat) -> bool:
        """All of a job's minimum, or nothing."""
        self.room.begin()
        self._saved = {seat.job.uid: seat.copy()}
        used = {r: dict(a) for r, a in self._used.items() if r == seat.job.namespace}
        while seat.granted < seat.job.min and self._grant(seat, _anybody_but(seat)):
            pass
        seat.let_in = seat.granted >= seat.job.min
        if seat.let_in:
            self.room.commit()
            seat.coming = seat.waits > 0
        else:
            seat.reached = seat.granted
            self.room.rollback()
            for uid, before in self._saved.items():
                self._seats[uid].restore(before)
            self._used |= used
        self._saved = None
        return seat.let_in

    # ---- rule 3 ------------------------------------------------------------------------------------------------------
    def _share_out(self, seats: Sequence[Seat]) -> None:
        """The jobs of one priority; what lower ones hold is still loose."""
        fixed = [s for s in seats if not s.job.elastic]
        for seat in fixed:
            self._keep_all(seat)
        for seat in fixed:
            while seat.granted < seat.limit and self._grant(seat, _anybody_but(seat)):
                pass
        elastic = [s for s in seats if s.job.elastic]
        for seat in elastic:
            if seat.hold is Stop.RECENT or not worth.may_give(seat.job, self._policy):
                self._keep_all(seat)
        self._tier = Tier(elastic, self._policy.weights, self._seats)
        self._tier.fill(self._grant)
        self._tier = None

    def _keep_all(self, seat: Seat) -> None:
        while seat.granted < seat.limit and self._keep(seat):
            pass

    # ---- granting ----------------------------------------------------------------------------------------------------
    def _grant(self, seat: Seat, may: May | None) -> bool:
        """One more worker: one that is there, else a free place, else one that others leave for it."""
        if seat.next_loose() is not None:
            return self._keep(seat)
        demand = seat.job.kind.demand
        if not self._within_quota(seat, demand):
            return False
        if self.room.place(seat.job.kind):
            seat.fresh += 1
        elif (may is not None or self.room.has_spares) and self._displace(seat, may):
            seat.waits += 1
        else:
            seat.stop = Stop.NO_ROOM
            return False
        self._use(seat, demand)
        return True

    def _keep(self, seat: Seat, bounded: bool = True) -> bool:
        worker = seat.next_loose()
        if worker is None or (bounded and not self._within_quota(seat, worker.demand)):
            return False
        seat.keep(worker)
        self.room.keep(worker)
        self._use(seat, worker.demand)
        return True

    def _displace(self, seat: Seat, may: May | None) -> bool:
        """Have spares leave, or where that is not enough, workers that ``may`` be displaced."""
        gone = self.room.give_back(seat.job.kind, self._rank) if self.room.has_spares else None
        if gone is None and may is not None:
            gone = self.room.displace(seat.job.kind, may, self._rank)
        for loose in gone or ():
            other = self._seats[loose.uid]
            if self._saved is not None and loose.uid not in self._saved:
                self._saved[loose.uid] = other.copy()
            other.lose(loose.worker)
            if self._tier is not None and not loose.worker.spare:
                self._tier.lost(other)
        return gone is not None

    def _rank(self, uid: str) -> tuple[int, ...]:
        """Of the lowest priority first, and of those whoever has most."""
        seat = self._seats[uid]
        return (seat.job.priority, -seat.held_level)

    def _within_quota(self, seat: Seat, demand: Amounts) -> bool:
        refused = self._over_quota(seat.job.namespace, demand)
        if refused is not None:
            seat.stop = Stop.QUOTA
            self._refused[seat.job.uid] = refused
        return refused is None

    def _over_quota(self, namespace: str, demand: Amounts) -> str | None:
        """Why the namespace may not have so much more; None: it may."""
        bounds = self._policy.quotas.get(namespace, {})
        for resource, amount in demand:
            most, used = bounds.get(resource), self._used.get(namespace, {}).get(resource, 0)
            if most is not None and used + amount > most:
                return explanations.quota(namespace, resource, used, most, amount)
        return None

    def _use(self, seat: Seat, demand: Amounts) -> None:
        used = self._used.get(seat.job.namespace)
        if used is not None:
            for resource, amount in demand:
                used[resource] = used.get(resource, 0) + amount

    # ---- does it pay? ------------------------------------------------------------------------------------------------
    def not_worth_it(self) -> dict[str, str]:
        """Elastic jobs, by UID, that would grow by less than their pause costs, and that in words."""
        found = {}
        for seat in self._queue:
            job = seat.job
            if job.elastic and seat.hold is None and job.trains and 0 < job.size < seat.granted:
                value: Worth = worth.growth(job, job.size, seat.granted, self._policy)
                if not value.pays:
                    found[job.uid] = explanations.vain(job, seat.granted, value)
        return found

    def again(self) -> float | None:
        """Seconds until the first job may be resized again, if that could matter."""
        if all(s.granted >= s.job.cap for s in self._queue):
            return None
        thaws = [worth.thaws(s.job, self._policy, self._now) for s in self._queue if s.job.elastic]
        first = min((t for t in thaws if t), default=None)
        return (first - self._now).total_seconds() if first else None

    # ---- the answer --------------------------------------------------------------------------------------------------
    def answer(self, revoked: dict[str, str]) -> dict[str, Share]:
        """``revoked``: jobs whose growth does not pay, found in the last round: they keep their size."""
        shares = {seat.job.uid: self._share(seat, revoked) for seat in self._queue}
        for seat in self._queue:
            if seat.job.spares and seat.job.trains:
                uid = seat.job.uid
                shares[uid] = self._with_spares(seat, shares[uid])
        return shares

    def _with_spares(self, seat: Seat, share: Share) -> Share:
        """What nobody needs: for spares that stand by already, then for new ones. The quota counts them, too."""
        job = seat.job
        standing: list[str] = []
        for worker in [w for w in job.workers if w.spare and w.node]:
            loose = worker.name not in seat.stays and worker.name not in seat.goes
            if loose and len(standing) < job.spares and self._over_quota(job.namespace, worker.demand) is None:
                self._use(seat, worker.demand)
                standing.append(worker.name)
        spares, demand = len(standing), job.kind.demand
        while spares < job.spares and self._over_quota(job.namespace, demand) is None and self.room.place(job.kind):
            self._use(seat, demand)
            spares += 1
        return replace(share, spares=spares, release=share.release - frozenset(standing))

    def _share(self, seat: Seat, revoked: dict[str, str]) -> Share:
        job, size = seat.job, self._size(seat)
        if job.uid in revoked:
            size = min(size, max(job.size, job.min))
        going, troubled = self._trouble(job.kind.place)
        reason, message = self._why(seat, size)
        if job.uid in revoked:
            reason, message = Stop.VAIN, revoked[job.uid]
        return Share(
            size=size,
            reason=reason.value,
            message=message,
            release=frozenset(w.name for w in job.workers if w.node and w.name not in seat.stays),
            replace=self._replaceable(seat, going),
            shaky=frozenset(w.name for w in job.workers if w.node in troubled),
        )

    def _size(self, seat: Seat) -> int:
        """Workers wanted at this moment; room that is promised counts when it is there."""
        if seat.job.trains:
            return max(seat.kept + seat.fresh, seat.job.min)
        return seat.kept + seat.fresh if seat.let_in and not seat.coming else 0

    def _why(self, seat: Seat, size: int) -> tuple[Stop, str]:
        job, quota = seat.job, self._refused.get(seat.job.uid, "")
        if size >= job.cap:
            return Stop.AT_MAX, explanations.at_max(job, size)
        idle = self._idle_for(job.kind)
        if not size:
            return Stop.MINIMUM, explanations.minimum(seat, idle, quota)
        if seat.waits:
            seat.stop = Stop.OTHERS_LEAVE
        elif seat.hold and seat.granted >= seat.limit:
            told = self._vain[job.uid] if seat.hold is Stop.VAIN else explanations.recent(self._policy)
            return seat.hold, told
        elif seat.stop is not Stop.QUOTA:
            seat.stop = Stop.NO_ROOM if idle.nodes else Stop.NO_NODE
        return seat.stop or Stop.NO_ROOM, explanations.not_grown(seat, idle, quota)

    def _idle_for(self, kind: Kind) -> Idle:
        if kind not in self._idle:
            self._idle[kind] = self.room.idle(kind)
        return self._idle[kind]

    def _replaceable(self, seat: Seat, going: frozenset[str]) -> frozenset[str]:
        """Workers on nodes that go, as many as find room elsewhere, while at least the minimum goes on training."""
        if not going or not seat.let_in:
            return frozenset()
        staying = [w for w in seat.job.workers if w.name in seat.stays]
        spare = max(sum(w.trains for w in staying) - seat.job.min, 0)
        chosen: list[str] = []
        for worker in [w for w in staying if w.node in going]:
            if worker.trains and not spare:
                continue
            if len(staying) - len(chosen) <= seat.job.min:
                break
            if not self.room.place(seat.job.kind):
                break
            spare -= worker.trains
            chosen.append(worker.name)
        return frozenset(chosen)

    def _trouble(self, place: Place) -> tuple[frozenset[str], frozenset[str]]:
        """Nodes that workers of that kind should move away from, and those together with nodes that are not ready."""
        if place not in self._troubled:
            self.room.looks += len(self._snapshot.nodes)
            going = frozenset(n.name for n in self._snapshot.nodes if lets_go(n, place))
            self._troubled[place] = (going, going | {n.name for n in self._snapshot.nodes if not n.ready})
        return self._troubled[place]


def _order(seat: Seat) -> tuple[int, bool, float, str]:
    """The queue: by priority; those who train already before those who are to be let in; then the oldest."""
    job = seat.job
    return (-job.priority, not job.trains, job.created, job.uid)


def _anybody_but(seat: Seat) -> May:
    """Whatever is still loose may be displaced: those with a better claim have theirs already."""
    own = seat.job.uid
    return lambda uid, _: uid != own
